#pragma once

#include <troupe/error.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/resources.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

namespace troupe::actors {

/// What the runs on one node have of its resources. A lease is a run's share of the node, which no other run gets until
/// this one ends here. Runs that wait are served in the order of their tickets, which is the same on every node: the
/// oldest gets all that it needs, on however many nodes, so two runs never wait for each other. A plain class.
class lease_table {
 public:
  using time = std::chrono::steady_clock::time_point;

  /// A waiting run that is silent for this long loses its place in the queue.
  static constexpr std::chrono::seconds queue_patience{5};
  /// A lease ends if the run is not opened within this time.
  static constexpr std::chrono::seconds opening_patience{30};

  /// The ticket of a run that goes after all that wait.
  [[nodiscard]] static lease_ticket youngest(const run_id& run) {
    return {std::numeric_limits<std::uint64_t>::max(), run};
  }

  explicit lease_table(resources capacity) : capacity_(std::move(capacity)) {}

  [[nodiscard]] const resources& capacity() const noexcept { return capacity_; }

  /// What the run could have here, including what it has: less what others have, and nothing of a kind for which an
  /// older run waits.
  [[nodiscard]] resources open_to(const lease_ticket& ticket, time now) const;
  /// Who has resources of this node or waits for them, other than this run, for people: "run digits has 2 CPUs, run
  /// words has waited longer". Only those that overlap with `wanted`.
  [[nodiscard]] std::string describe_holders(const lease_ticket& ticket, const resources& wanted, time now) const;

  /// See `lease_request`. A run that waits keeps its place in the queue until it is opened. If this fails, it also
  /// keeps what it has.
  [[nodiscard]] expected<void> lease(const lease_request& request, time now);
  /// Younger runs get no resources of the kinds for which this one waits. Call it again within `queue_patience`.
  void wait(const waiting_run& who, time now);

  /// The run is open here, with or without a lease, until `end`.
  void open(const run_id& run, const std::string& run_name);
  /// The run's workers take this much now. What goes beyond its lease is added to it, and given back when they take
  /// less. Fails with `errc::busy` if others have it, and changes nothing then.
  [[nodiscard]] expected<void> use(const run_id& run, const resources& amount, time now);
  /// The run gives everything back, and waits no more.
  void end(const run_id& run);

 private:
  struct holding {
    std::string run_name;
    /// The youngest possible if it was opened without a lease.
    lease_ticket ticket;
    resources leased;
    resources used;
    /// Nothing once the run is open.
    std::optional<time> since;
  };
  struct queued {
    std::string run_name;
    resources each;
    time heard;
  };

  [[nodiscard]] static bool lasts(const holding& x, time now) { return !x.since || now - *x.since < opening_patience; }
  void forget_in_queue(const run_id& run);
  [[nodiscard]] expected<void> check(const lease_ticket& ticket, const resources& amount, time now) const;
  template <class Visit>
  void for_each_older(const lease_ticket& ticket, time now, Visit visit) const;

  resources capacity_;
  std::map<run_id, holding> leases_;
  std::map<lease_ticket, queued> queue_;
};

} // namespace troupe::actors

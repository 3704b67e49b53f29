#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/descriptor_link.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace troupe::runtime {

/// An upper bound on the workers of one node, so that an absurd number in a message does not make the node allocate.
inline constexpr std::uint32_t max_local_world_size = 4096;

/// The answer to a worker that does not get the others' descriptors.
struct offer_refusal {
  worker_id worker;
  descriptor_group group;
  error reason;
};

/// The consequences of an offer.
struct offer_decision {
  /// The offer is the first of its group, which ends the exchange of the one before.
  bool new_group = false;

  /// The offer was accepted: keep the descriptors that came with it.
  bool placed = false;

  /// The workers to refuse: the sender of the offer, or workers that wait for an exchange that can no longer complete.
  std::vector<offer_refusal> refused;

  /// All workers of the exchange in the order of their local ranks, if this offer completes it; empty otherwise.
  std::vector<worker_id> complete;
};

/// Decides which offers of one run complete an exchange. Only the newest group has an exchange: an offer of a newer
/// group ends it, and an offer of an older one is refused. Does not see the descriptors themselves.
class descriptor_table {
 public:
  /// Each worker offers once per group. Contradictory offers end the exchange for all its workers with
  /// `errc::mismatch`, because it could never complete.
  [[nodiscard]] offer_decision offer(worker_id worker, const descriptor_offer& what);

  /// Removes a lost worker. A pending exchange keeps the place open and therefore never completes.
  void leave(worker_id worker);

  /// Whether the worker waits for an exchange.
  [[nodiscard]] bool waits(worker_id worker) const;

 private:
  /// Workers wait for others.
  struct open {};
  struct complete {};
  struct failed {
    error reason;
  };

  [[nodiscard]] bool is_open() const noexcept { return std::holds_alternative<open>(exchange_); }
  void begin(const descriptor_offer& what);
  [[nodiscard]] std::optional<error> contradiction(worker_id worker, const descriptor_offer& what) const;
  void refuse_all_waiting(const error& reason, offer_decision& result);

  /// Generation 0 before the first offer.
  descriptor_group newest_;

  /// By local rank, in the newest group.
  std::vector<std::optional<worker_id>> places_;
  std::variant<open, complete, failed> exchange_;
};

} // namespace troupe::runtime

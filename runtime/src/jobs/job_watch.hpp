#pragma once

#include <troupe/runtime/jobs.hpp>

#include <chrono>
#include <map>
#include <string>

namespace troupe::runtime {

/// Whether a node takes over a job whose host it does not hear any more. Its keepers tell each other once a second what
/// they know of it, and for how long they have not heard its host. No vote is needed: if two nodes have a job for a
/// while, because the network between them was cut, both compute the same bits, and the one with the earlier term gives
/// its driver up when it hears of the other. Pure.
class job_watch {
 public:
  using time_point = std::chrono::steady_clock::time_point;

  struct settings {
    /// How long the host must be silent where another keeper, which is there, does not hear it either.
    std::chrono::milliseconds lost_after{10'000};
    /// The same where no other keeper is there: this node may be the one that is cut off.
    std::chrono::milliseconds lost_alone{60'000};
    /// A keeper that has spoken within this time is there.
    std::chrono::milliseconds there_within{3'000};
  };

  /// `self` is this node's address.
  job_watch(std::string self, settings how, time_point now) : self_(std::move(self)), how_(how), host_heard_(now) {}

  /// The job has another host, which gets its time from now on.
  void begin(time_point now) { host_heard_ = now; }

  /// The keeper at the address `from` says that it has not heard the job's host for this long; 0 if it is the host.
  void hear(const std::string& from, std::chrono::milliseconds host_silent_for, time_point now);

  /// For how long nobody has heard the host.
  [[nodiscard]] std::chrono::milliseconds host_silent_for(time_point now) const;

  /// Whether this node takes the job over now: the first of its keepers that is there does.
  [[nodiscard]] bool takes_over(const known_job& job, time_point now) const;

  /// The keeper to hand the job to: the first other one that is there; empty if none is.
  [[nodiscard]] std::string successor(const known_job& job, time_point now) const;

 private:
  [[nodiscard]] bool is_there(const std::string& keeper, time_point now) const;

  std::string self_;
  settings how_;
  time_point host_heard_;
  std::map<std::string, time_point> heard_;
};

/// Of two nodes that say different things about a job, whether the second is right: it has the later term, or of one
/// term the removal, the end, or the host that comes first among the keepers.
[[nodiscard]] bool supersedes(const known_job& later, const known_job& earlier);

} // namespace troupe::runtime

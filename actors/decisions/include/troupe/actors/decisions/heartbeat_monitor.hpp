#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace troupe::actors {

/// Reports which peers have sent no heartbeat for too long: a node watches its workers with it, the driver its nodes.
/// `Key` is ordered and names a peer. Time comes in as an argument.
///
/// The owner asks at a regular interval, a small part of the timeout. If it asks late (after more than half the
/// timeout), it did not run itself, and heartbeats may lie unread in its mailbox: all windows restart, so that peers
/// are not blamed for the watcher's own pause. The first question counts as late.
template <class Key>
class heartbeat_monitor {
 public:
  using clock = std::chrono::steady_clock;

  struct silence {
    Key key;
    clock::duration silent_for{};

    bool operator==(const silence&) const = default;
  };

  explicit heartbeat_monitor(clock::duration timeout) : timeout_(timeout) {}

  /// Begins to watch `key`, or begins anew: its window starts now.
  void add(const Key& key, clock::time_point now) { peers_.insert_or_assign(key, peer{now}); }

  void remove(const Key& key) { peers_.erase(key); }

  /// Takes in a heartbeat; that of a peer which is not watched has no effect. Returns whether the peer had been
  /// reported as silent.
  bool heard(const Key& key, clock::time_point now) {
    auto i = peers_.find(key);
    return i != peers_.end() &&
           std::exchange(i->second, peer{std::max(i->second.heard, now)}).last_report == report::silent;
  }

  /// The peers that have been silent for longer than the timeout; to be asked at every interval. Each is reported once,
  /// until it is heard again or spared.
  [[nodiscard]] std::vector<silence> silent(clock::time_point now) {
    auto late = !asked_ || now - *asked_ > timeout_ / 2;
    asked_ = now;
    if (late)
      restart_windows(now);
    return take(now, timeout_, report::silent);
  }

  /// The peers that have been silent for longer than half the timeout: time for a first sample, to compare a later one
  /// with. To be asked after `silent`; each is reported once, until it is heard again or all windows restart.
  [[nodiscard]] std::vector<silence> overdue(clock::time_point now) { return take(now, timeout_ / 2, report::overdue); }

  /// Whether a peer has been silent for longer than half the timeout and is not reported as silent.
  [[nodiscard]] bool anyone_quiet(clock::time_point now) const {
    return std::ranges::any_of(peers_, [&](const auto& x) {
      return x.second.last_report != report::silent && now - x.second.heard > timeout_ / 2;
    });
  }

  /// Withdraws a report of silence: the peer is reported again at the next interval, with a longer silence.
  void spare(const Key& key) {
    if (auto i = peers_.find(key); i != peers_.end())
      i->second.last_report = std::min(i->second.last_report, report::overdue);
  }

 private:
  /// The last report about a peer since its last heartbeat. Ordered: a silent peer is also overdue.
  enum class report : std::uint8_t { nothing, overdue, silent };

  struct peer {
    clock::time_point heard;
    report last_report = report::nothing;
  };

  void restart_windows(clock::time_point now) {
    for (auto& [key, x] : peers_) {
      x.heard = std::max(x.heard, now);
      if (x.last_report == report::overdue)
        x.last_report = report::nothing;
    }
  }

  std::vector<silence> take(clock::time_point now, clock::duration limit, report what) {
    std::vector<silence> result;
    for (auto& [key, x] : peers_)
      if (now - x.heard > limit && x.last_report < what) {
        x.last_report = what;
        result.push_back({key, now - x.heard});
      }
    return result;
  }

  clock::duration timeout_;
  std::map<Key, peer> peers_;
  std::optional<clock::time_point> asked_;
};

} // namespace troupe::actors

#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace troupe::actors {

/// Tells who of those that should send beats has been silent for too long: a node watches its workers with it, the
/// driver its nodes. `Key` is ordered and names one of them. Time comes in as an argument.
///
/// The owner asks at a regular interval, a small part of the timeout. Whoever asks late (after more than half the
/// timeout) did not get to run itself, and beats may lie unread in its mailbox: all windows start again, and nobody is
/// fenced for what the watcher has missed. The first question counts as late.
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

  /// Takes in a beat; one of somebody who is not watched (any more) says nothing. Returns whether it was told to be
  /// silent before.
  bool heard(const Key& key, clock::time_point now) {
    auto i = peers_.find(key);
    return i != peers_.end() && std::exchange(i->second, peer{std::max(i->second.heard, now)}).told_silent;
  }

  /// Who has been silent for longer than the timeout; to be asked at every interval. Each is told once, until it is
  /// heard again or spared.
  [[nodiscard]] std::vector<silence> silent(clock::time_point now) {
    auto late = !asked_ || now - *asked_ > timeout_ / 2;
    asked_ = now;
    if (late)
      start_windows_again(now);
    return take(now, timeout_, &peer::told_silent);
  }

  /// Who has been silent for longer than half the timeout: time for a first look, to compare a later one with. To be
  /// asked after `silent`; each is told once, until it is heard again or all windows start again.
  [[nodiscard]] std::vector<silence> overdue(clock::time_point now) {
    return take(now, timeout_ / 2, &peer::told_overdue);
  }

  /// Whether somebody has been silent for longer than half the timeout who was not told as silent.
  [[nodiscard]] bool anyone_quiet(clock::time_point now) const {
    return std::ranges::any_of(
        peers_, [&](const auto& x) { return !x.second.told_silent && now - x.second.heard > timeout_ / 2; });
  }

  /// Lets somebody who was told as silent live for now: it is told again at the next interval, with a longer silence.
  void spare(const Key& key) {
    if (auto i = peers_.find(key); i != peers_.end())
      i->second.told_silent = false;
  }

 private:
  struct peer {
    clock::time_point heard;
    bool told_overdue = false;
    bool told_silent = false;
  };

  void start_windows_again(clock::time_point now) {
    for (auto& [key, x] : peers_) {
      x.heard = std::max(x.heard, now);
      x.told_overdue = false;
    }
  }

  std::vector<silence> take(clock::time_point now, clock::duration limit, bool peer::*told) {
    std::vector<silence> result;
    for (auto& [key, x] : peers_)
      if (now - x.heard > limit && !(x.*told)) {
        x.*told = true;
        result.push_back({key, now - x.heard});
      }
    return result;
  }

  clock::duration timeout_;
  std::map<Key, peer> peers_;
  std::optional<clock::time_point> asked_;
};

} // namespace troupe::actors

#pragma once

#include <troupe/error.hpp>
#include <troupe/messages/regroup.hpp>
#include <troupe/messages/worker.hpp>

#include <cstdint>
#include <deque>
#include <optional>

namespace troupe::actors {

/// Decides which worker may end itself now, of those whose device does not let go of a lost group. One at a time, so
/// that workers that hang together do not take the state with them. A plain class; the collectives actor carries its
/// messages.
class exit_permits {
 public:
  /// An answer that is due.
  struct grant {
    worker_id worker;
    exit_granted answer;

    bool operator==(const grant&) const = default;
  };

  /// A generation of this size has been formed: that many workers have the state. All of its members have reported, so
  /// all requests and permits of before are void. False, without effect, for a generation without a size, the same one
  /// again, or an older one.
  bool begin(const generation_started& message);

  /// A worker requests its exit. Repeating it is harmless. Fails with `errc::stale_generation` for another run, and for
  /// a generation before the last that was formed.
  [[nodiscard]] expected<std::optional<grant>> ask(const exit_request& message);

  /// A worker goes on after all, whether it had a permit or waited: the next may exit.
  [[nodiscard]] std::optional<grant> withdraw(const exit_withdrawn& message);

  /// A worker has ended, whether it had a permit or not: the next may exit.
  [[nodiscard]] std::optional<grant> gone(const worker_gone& message);

 private:
  [[nodiscard]] std::optional<grant> next();

  run_id run_;
  /// The generation that was formed last.
  generation_id formed_;
  std::uint32_t holders_ = 0;
  std::optional<worker_id> leaving_;
  std::deque<worker_id> waiting_;
};

} // namespace troupe::actors

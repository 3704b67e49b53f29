#pragma once

#include <troupe/error.hpp>
#include <troupe/messages/regroup.hpp>
#include <troupe/messages/worker.hpp>

#include <cstdint>
#include <deque>
#include <optional>

namespace troupe::actors {

/// Decides which worker may exit now, of those whose device does not release a lost group. One at a time, so that
/// workers that hang together do not lose the state. A plain class; the collectives actor carries its messages.
class exit_permits {
 public:
  /// An answer that is due.
  struct grant {
    worker_id worker;
    exit_granted answer;

    bool operator==(const grant&) const = default;
  };

  /// A generation of this size has been formed: that many workers have the state. All of its members have reported, so
  /// earlier requests and permits are void. Returns false and does nothing for a generation without a size, a repeated
  /// one, or an older one.
  bool begin(const generation_started& message);

  /// A worker requests its exit. Repeating it is harmless. Fails with `errc::stale_generation` for another run, and for
  /// a generation before the last that was formed.
  [[nodiscard]] expected<std::optional<grant>> ask(const exit_request& message);

  /// A worker continues after all, whether it had a permit or waited: the next may exit.
  [[nodiscard]] std::optional<grant> withdraw(const exit_withdrawn& message);

  /// A worker has ended, whether it had a permit or not: the next may exit.
  [[nodiscard]] std::optional<grant> gone(const worker_gone& message);

 private:
  [[nodiscard]] std::optional<grant> next();

  run_id run_;
  /// The generation that was formed last.
  generation_id formed_;
  std::uint32_t holders_ = 0;
  std::optional<worker_id> permitted_;
  std::deque<worker_id> waiting_;
};

} // namespace troupe::actors

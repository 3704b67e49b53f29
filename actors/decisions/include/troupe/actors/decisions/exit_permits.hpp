#pragma once

#include <troupe/error.hpp>
#include <troupe/messages/regroup.hpp>
#include <troupe/messages/worker.hpp>

#include <cstdint>
#include <deque>
#include <optional>

namespace troupe::actors {

/// Who may end itself, of the workers whose device will not be given back to them: one at a time, so that those who
/// hang together do not take the state with them. A plain class; the collectives actor carries its messages.
class exit_permits {
 public:
  /// An answer that is due.
  struct grant {
    worker_id worker;
    exit_granted answer;

    bool operator==(const grant&) const = default;
  };

  /// A generation of this size has been formed: that many have the state. All of its members have reported, so that
  /// nobody waits any more, and nobody who stays has leave: then true. Without a size, nothing changes.
  bool begin(const generation_started& message);

  /// A worker asks. Asking again is harmless. Fails with `errc::stale_generation` for another run, and for a generation
  /// before the last that was formed.
  [[nodiscard]] expected<std::optional<grant>> ask(const exit_request& message);

  /// A worker goes on after all, whether it had leave or waited: the next may go.
  [[nodiscard]] std::optional<grant> withdraw(const exit_withdrawn& message);

  /// A worker is gone, whether it had leave or not: the next may go.
  [[nodiscard]] std::optional<grant> gone(const worker_gone& message);

 private:
  [[nodiscard]] std::optional<grant> next();

  run_id run_;
  /// The last that was formed.
  generation_id formed_;
  std::uint32_t holders_ = 0;
  std::optional<worker_id> leaving_;
  std::deque<worker_id> waiting_;
};

} // namespace troupe::actors

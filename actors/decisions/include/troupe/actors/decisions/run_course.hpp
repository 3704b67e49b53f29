#pragma once

#include <troupe/actors/decisions/run_end.hpp>
#include <troupe/config/scaling.hpp>
#include <troupe/inspect.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace troupe::actors {

/// The requests that a run must follow, which outlast its attempts.
struct run_course {
  enum class request : std::uint8_t {
    none,
    pause,
    /// A stop was commanded: no generation is held, and no worker joins.
    stop,
  };

  /// Of an elastic run, as many workers as it may have; else as many as it was placed with.
  run_course(worker_range range, std::size_t placed)
      : workers(range.is_elastic() ? range.max : static_cast<std::uint32_t>(placed)) {}

  /// How many workers are wanted.
  std::uint32_t workers;
  request asked = request::none;
  /// Known once a training function has returned: the others are about to.
  std::optional<run_end> end;

  [[nodiscard]] bool is_ending() const noexcept { return asked == request::stop || end; }
};

TROUPE_INSPECT_ENUM(run_course::request, none, stop)

} // namespace troupe::actors

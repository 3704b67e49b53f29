#pragma once

#include "shm/control.hpp"

#include <cstdint>

/// The calls that the ranks of a host show each other in their control blocks, to detect that they make different ones.
namespace troupe::collectives::shm {

[[nodiscard]] bool is_collective(const call_record& call) noexcept;

/// A call in which no rank ends before all have begun it.
[[nodiscard]] bool waits_for_all(const call_record& call) noexcept;

/// Writes a call that begins to this rank's control block.
void log_call(control& own, const call_record& call) noexcept;

/// The digest of a history that `call` continues.
[[nodiscard]] std::uint64_t extend_history(std::uint64_t history, const call_record& call) noexcept;

// Of a peer that may be writing; default values if there is never a consistent copy.

/// The last call, running or ended.
[[nodiscard]] call_record last_call(const control& theirs) noexcept;
/// The running call; its kind is `none` outside one.
[[nodiscard]] call_record running_call(const control& theirs) noexcept;
/// The collective call with this number; its kind is `none` if the peer has not begun it or no longer remembers it.
[[nodiscard]] call_record collective_call(const control& theirs, std::uint64_t sequence) noexcept;
/// The number of collective calls begun.
[[nodiscard]] std::uint64_t collective_calls(const control& theirs) noexcept;

} // namespace troupe::collectives::shm

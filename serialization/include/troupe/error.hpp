#pragma once

#include <troupe/inspect.hpp>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace troupe {

/// Error codes, grouped by the reaction they require. Zero is success; numbers are explicit and never reused.
enum class errc : std::uint8_t {
  none = 0,
  /// A configuration or argument is out of range: correct it and call again.
  invalid_argument = 1,
  /// The request exceeds what the nodes offer: ask for less, or add nodes.
  unsatisfiable = 2,
  /// A host and port cannot be reached: check the address, and that caf-node runs there.
  unreachable = 3,
  /// The peer's certificate or our own was rejected: check the cluster's keys.
  not_authenticated = 4,
  /// The peer does not know the run's secret, so it is not a worker of this run.
  wrong_secret = 5,
  /// The program is missing on a host or is a different build: install the same build on all hosts.
  program_mismatch = 6,
  /// Members disagree about data, numerics or the run's plan: make them equal.
  mismatch = 7,
  /// A worker process ended before it was released: see its exit status and last lines.
  worker_lost = 8,
  /// The connection to a node is lost, and its workers with it.
  node_lost = 9,
  /// A peer of a collective operation is lost, or the communicator was aborted: the operation has no result.
  aborted = 10,
  /// An operation did not finish before its deadline.
  timed_out = 11,
  /// The message or connection belongs to an earlier generation or run: drop it.
  stale_generation = 12,
  /// The file system reported an error: full, read-only, missing or damaged device. The message names path and cause.
  io_error = 13,
  /// Bytes on disk differ from what was written: use an older checkpoint.
  damaged = 14,
  /// A file was written by a newer version: use that version to read it.
  unsupported_version = 15,
  /// The requested item does not exist.
  not_found = 16,
  /// The item to create already exists: choose another name, or resume.
  already_exists = 17,
  /// The training function threw: the message is the exception's text.
  user_error = 18,
  /// The run was stopped on request before its last step.
  stopped = 19,
  /// An invariant of Troupe is broken: report a bug.
  internal = 20,
  /// A call to a GPU, its driver or NCCL failed: the message names device, call and cause.
  device_error = 21,
  /// A host answers, but no process listens at the port: check the port, and start caf-node there.
  connection_refused = 22,
  /// Another driver has taken the run over: this one ends, and leaves the workers alone.
  superseded = 23,
  /// Other runs have leased the resources: wait for them (scaling.wait_for_resources), or ask for less.
  busy = 24,
};

/// The enumerator's name.
[[nodiscard]] std::string_view to_string(errc code) noexcept;

TROUPE_INSPECT_ENUM(errc, none, busy)

/// An expected error as a value: a code to react to, and a message that says what, where, and what to do about it.
struct error {
  errc code = errc::none;
  std::string message;

  bool operator==(const error&) const = default;
};

TROUPE_INSPECT(error, code, message)

/// A value, or the error that prevented it.
template <class T>
using expected = tl::expected<T, error>;

/// Makes the error side of an `expected`: `return fail(errc::io_error, "...")`.
[[nodiscard]] inline tl::unexpected<error> fail(errc code, std::string message) {
  return tl::unexpected<error>{error{code, std::move(message)}};
}

/// Forwards an error: `return fail(std::move(result.error()))`.
[[nodiscard]] inline tl::unexpected<error> fail(error reason) {
  return tl::unexpected<error>{std::move(reason)};
}

/// Returns from the enclosing function with the error of an `expected`, if it has one; otherwise continues with the
/// value:
///
///     TROUPE_TRY(file.sync());
///     TROUPE_TRY(auto file, open(path));
#define TROUPE_TRY(first, ...) TROUPE_TRY_##__VA_OPT__(VALUE)(first __VA_OPT__(, ) __VA_ARGS__)
#define TROUPE_TRY_(...) /* NOLINT(readability-identifier-naming): VALUE is pasted to it. */                           \
  if (auto troupe_result = (__VA_ARGS__); !troupe_result)                                                              \
  return ::troupe::fail(std::move(troupe_result).error())
#define TROUPE_TRY_VALUE(variable, ...)                                                                                \
  TROUPE_TRY_NAMED(variable, TROUPE_TRY_JOIN(troupe_result_, __LINE__), __VA_ARGS__)
#define TROUPE_TRY_NAMED(variable, result, ...)                                                                        \
  auto result = (__VA_ARGS__);                                                                                         \
  if (!result)                                                                                                         \
    return ::troupe::fail(std::move(result).error());                                                                  \
  variable = std::move(*result)
#define TROUPE_TRY_JOIN(left, right) TROUPE_TRY_PASTE(left, right)
#define TROUPE_TRY_PASTE(left, right) left##right

/// The error of the last failed system call: "path: No space left on device". Reads `errno` first.
[[nodiscard]] error system_error(std::string_view what);

/// Carries an `error` out of the user's training loop, where a return value could not unwind the stack.
class exception : public std::exception {
 public:
  explicit exception(error reason) : reason_(std::move(reason)) {}
  exception(errc code, std::string message) : reason_{code, std::move(message)} {}

  [[nodiscard]] const char* what() const noexcept override { return reason_.message.c_str(); }
  [[nodiscard]] const error& reason() const noexcept { return reason_; }
  [[nodiscard]] errc code() const noexcept { return reason_.code; }

 private:
  error reason_;
};

/// Returns the value of `result`, or throws its error as an `exception`.
template <class T>
T value_or_throw(expected<T> result) {
  if (!result)
    throw exception{std::move(result.error())};
  if constexpr (!std::is_void_v<T>)
    return std::move(*result);
}

} // namespace troupe

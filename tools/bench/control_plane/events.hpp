#pragma once

#include <chrono>
#include <cstdint>
#include <unistd.h>

namespace troupe::bench {

/// The kinds of events of a run's processes.
enum class event_kind : std::uint8_t {
  /// A host listens; the value is its port.
  listens,
  /// The driver is about to start the run; the value is its resident memory in bytes.
  begins,
  /// A worker has the addresses of its generation, which is the value.
  formed,
  /// A worker's plan was accepted in the generation that is the value.
  agreed,
  /// A worker's process has ended; the value is its id.
  lost,
  /// The driver has formed the generation that is the value.
  decided,
  /// The run has ended; the value is its `run_status`.
  ended,
};

/// One line of the record that all processes of a run write.
struct event {
  event_kind kind = event_kind::listens;
  std::uint64_t value = 0;
  /// Of the steady clock, which all processes of a machine share.
  std::int64_t time_ns = 0;
};

/// Writes events into a pipe. Small writes to a pipe are whole, so several processes may share it. A value: copies
/// write into the same pipe.
class event_writer {
 public:
  explicit event_writer(int fd) noexcept : fd_(fd) {}

  /// Callable from any thread. Ends the process if the reader is gone.
  void write(event_kind kind, std::uint64_t value) const {
    const event what{kind, value, std::chrono::steady_clock::now().time_since_epoch().count()};
    if (::write(fd_, &what, sizeof(what)) != static_cast<ssize_t>(sizeof(what)))
      ::_exit(1);
  }

 private:
  int fd_;
};

} // namespace troupe::bench

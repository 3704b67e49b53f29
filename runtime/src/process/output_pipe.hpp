#pragma once

#include <troupe/runtime/process.hpp>
#include <troupe/runtime/program.hpp>

#include <functional>
#include <string>
#include <string_view>

namespace troupe::runtime {

/// Our end of a child's output or error stream: reads without blocking and cuts the bytes into lines of at most
/// `max_line_bytes`.
class output_pipe {
 public:
  using line_handler = std::function<void(output_stream, std::string)>;

  output_pipe() = default;

  /// `fd` must be non-blocking.
  output_pipe(unique_fd fd, output_stream stream) : fd_(std::move(fd)), stream_(stream) {}

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] bool is_open() const noexcept { return static_cast<bool>(fd_); }

  /// Reads at most what the pipe can hold, so that a chatty child does not hold up the others. Closes the pipe at its
  /// end.
  void read(const line_handler& on_line);

  /// Reads once more, emits what is left without an end of line, and closes the pipe.
  void finish(const line_handler& on_line);

 private:
  void split(std::string_view bytes, const line_handler& on_line);
  void emit(const line_handler& on_line);

  unique_fd fd_;
  output_stream stream_ = output_stream::out;
  std::string line_;
};

} // namespace troupe::runtime

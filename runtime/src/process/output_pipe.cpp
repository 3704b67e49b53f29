#include "process/output_pipe.hpp"

#include "process/child_launcher.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

void output_pipe::read(const line_handler& on_line) {
  if (!fd_)
    return;
  std::array<char, pipe_bytes> buffer;
  auto n = ::read(fd_.get(), buffer.data(), buffer.size());
  if (n > 0)
    return split({buffer.data(), static_cast<std::size_t>(n)}, on_line);
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  fd_.reset();
}

void output_pipe::finish(const line_handler& on_line) {
  read(on_line);
  if (!line_.empty())
    emit(on_line);
  fd_.reset();
}

void output_pipe::split(std::string_view bytes, const line_handler& on_line) {
  while (!bytes.empty()) {
    if (bytes.front() == '\n') {
      emit(on_line);
      bytes.remove_prefix(1);
      continue;
    }
    if (line_.size() == max_line_bytes)
      emit(on_line);
    auto piece = bytes.substr(0, std::min(bytes.find('\n'), max_line_bytes - line_.size()));
    line_ += piece;
    bytes.remove_prefix(piece.size());
  }
}

void output_pipe::emit(const line_handler& on_line) {
  on_line(stream_, std::exchange(line_, {}));
}

} // namespace troupe::runtime

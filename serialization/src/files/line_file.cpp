#include <troupe/serialization/files/line_file.hpp>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace troupe::serialization {

line_file::line_file(line_file&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      waiting_(std::move(other.waiting_)),
      dropped_(other.dropped_) {}

line_file& line_file::operator=(line_file&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(waiting_, other.waiting_);
  std::swap(dropped_, other.dropped_);
  return *this;
}

line_file::~line_file() {
  if (fd_ >= 0)
    ::close(fd_);
}

expected<void> line_file::append(std::string_view lines) {
  if (waiting_.size() + lines.size() <= most_waiting_bytes)
    waiting_ += lines;
  else
    dropped_ += static_cast<std::uint64_t>(std::ranges::count(lines, '\n'));
  return write_waiting();
}

std::uint64_t line_file::take_dropped() noexcept {
  return std::exchange(dropped_, 0);
}

expected<void> line_file::write_waiting() {
  if (waiting_.empty())
    return {};
  if (fd_ < 0)
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  struct stat before {};
  if (fd_ < 0 || ::fstat(fd_, &before) != 0)
    return fail(errc::io_error, system_error("cannot write to " + path_.string()).message);
  std::size_t written = 0;
  auto code = 0;
  while (written < waiting_.size() && code == 0) {
    const auto n = ::write(fd_, waiting_.data() + written, waiting_.size() - written);
    if (n >= 0)
      written += static_cast<std::size_t>(n);
    else if (errno != EINTR)
      code = errno;
  }
  if (code == 0) {
    waiting_.clear();
    return {};
  }
  // The beginning of a line goes again.
  const auto end = waiting_.rfind('\n', written == 0 ? 0 : written - 1);
  const auto whole = written == 0 || end == std::string::npos || end >= written ? 0 : end + 1;
  if (whole < written && ::ftruncate(fd_, before.st_size + static_cast<off_t>(whole)) != 0)
    waiting_.erase(0, written);
  else
    waiting_.erase(0, whole);
  errno = code;
  return fail(errc::io_error, system_error("cannot write to " + path_.string()).message);
}

} // namespace troupe::serialization

#include "log_pipe.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <stdexcept>
#include <string_view>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace troupe::chaos {

namespace {

/// The least that a pipe can hold: it is full at once, and little of the log is filling.
constexpr int pipe_bytes = 4096;

constexpr std::string_view filling = "--- nobody reads this log ---\n";

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(fd, text.data(), text.size());
    if (written <= 0)
      return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

} // namespace

log_pipe::log_pipe(std::filesystem::path pipe, const std::filesystem::path& log) : pipe_(std::move(pipe)) {
  ::unlink(pipe_.c_str());
  if (::mkfifo(pipe_.c_str(), 0600) == 0) {
    // Open for writing as well: the pipe has no end while processes come and go, and `hold` fills it.
    reader_ = ::open(pipe_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    log_ = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    wake_ = ::eventfd(0, EFD_CLOEXEC);
  }
  if (reader_ < 0 || log_ < 0 || wake_ < 0)
    throw std::runtime_error{
        fmt::format("cannot make a pipe for a log at {}: {}", pipe_.string(), std::strerror(errno))};
  ::fcntl(reader_, F_SETPIPE_SZ, pipe_bytes);
  thread_ = std::thread{[this] { copy(); }};
}

log_pipe::~log_pipe() {
  {
    auto lock = std::lock_guard{mutex_};
    ends_ = true;
  }
  wake();
  thread_.join();
  for (auto fd : {reader_, log_, wake_})
    ::close(fd);
}

void log_pipe::wake() const {
  const auto one = std::uint64_t{1};
  (void)!::write(wake_, &one, sizeof one);
}

void log_pipe::copy() {
  std::array<char, pipe_bytes> buffer{};
  for (;;) {
    auto waiting = std::array<pollfd, 2>{};
    {
      auto lock = std::lock_guard{mutex_};
      if (ends_)
        return;
      waiting = {{{held_ ? -1 : reader_, POLLIN, 0}, {wake_, POLLIN, 0}}};
    }
    (void)::poll(waiting.data(), waiting.size(), -1);
    auto ignored = std::uint64_t{0};
    if (waiting[1].revents != 0)
      (void)!::read(wake_, &ignored, sizeof ignored);
    auto lock = std::lock_guard{mutex_};
    if (held_ || waiting[0].revents == 0)
      continue;
    if (const auto size = ::read(reader_, buffer.data(), buffer.size()); size > 0)
      write_all(log_, {buffer.data(), static_cast<std::size_t>(size)});
  }
}

void log_pipe::hold() {
  {
    auto lock = std::lock_guard{mutex_};
    held_ = true;
    // Whole lines first, and then bytes: not one more fits.
    write_all(reader_, "\n");
    while (::write(reader_, filling.data(), filling.size()) == static_cast<ssize_t>(filling.size())) {
    }
    while (::write(reader_, "\n", 1) == 1) {
    }
  }
  wake();
}

void log_pipe::release() {
  {
    auto lock = std::lock_guard{mutex_};
    held_ = false;
  }
  wake();
}

bool log_pipe::held() {
  auto lock = std::lock_guard{mutex_};
  return held_;
}

void log_pipe::drain() {
  using namespace std::chrono_literals;
  for (;;) {
    {
      auto lock = std::lock_guard{mutex_};
      auto size = 0;
      if (held_ || ::ioctl(reader_, FIONREAD, &size) != 0 || size == 0)
        return;
    }
    std::this_thread::sleep_for(1ms);
  }
}

} // namespace troupe::chaos

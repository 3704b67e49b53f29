#include "background_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <poll.h>
#include <unistd.h>
#include <utility>

namespace {

/// How often a writer that waits for a reader looks whether the log ends.
constexpr int look_interval_ms = 100;

std::string note_about(std::uint64_t dropped) {
  return fmt::format("({} lines are missing here, because nobody read this log)", dropped);
}

} // namespace

background_log::~background_log() {
  {
    auto lock = std::lock_guard{mutex_};
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void background_log::add(std::string line) {
  {
    auto lock = std::lock_guard{mutex_};
    if (waiting_.size() == most_waiting_lines) {
      ++dropped_;
      return;
    }
    if (dropped_ > 0)
      waiting_.push_back(note_about(std::exchange(dropped_, 0)));
    waiting_.push_back(std::move(line));
  }
  changed_.notify_all();
}

void background_log::write_lines() {
  auto lock = std::unique_lock{mutex_};
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (waiting_.empty())
      return;
    auto text = std::move(waiting_.front()) + "\n";
    waiting_.pop_front();
    if (waiting_.empty() && dropped_ > 0)
      text += note_about(std::exchange(dropped_, 0)) + "\n";
    lock.unlock();
    const auto written = write(text);
    lock.lock();
    if (!written)
      return;
  }
}

bool background_log::write(std::string_view left) {
  while (!left.empty()) {
    if (!await_room())
      return false;
    // A pipe that takes bytes takes this many without waiting.
    const auto size = ::write(fd_, left.data(), std::min<std::size_t>(left.size(), PIPE_BUF));
    if (size > 0)
      left.remove_prefix(static_cast<std::size_t>(size));
    else if (errno != EINTR && errno != EAGAIN)
      // The reader is gone; the next line is tried again.
      return true;
  }
  return true;
}

bool background_log::await_room() {
  for (;;) {
    auto waiting = pollfd{fd_, POLLOUT, 0};
    const auto ends = [this] {
      auto lock = std::lock_guard{mutex_};
      return ends_;
    }();
    if (::poll(&waiting, 1, ends ? 0 : look_interval_ms) > 0)
      return true;
    if (ends)
      return false;
  }
}

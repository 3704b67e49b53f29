#include "watching/growing_file.hpp"

#include <troupe/collectives/unique_fd.hpp>

#include <algorithm>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace troupe::runtime {

namespace {

constexpr std::size_t block_bytes = std::size_t{1} << 18;
/// Longer lines are no lines of ours.
constexpr std::size_t longest_line = std::size_t{8} << 20;
constexpr std::size_t tail_bytes = 128;

} // namespace

void growing_file::read(const std::function<void()>& forget, const line_sink& sink) {
  const auto file = collectives::unique_fd{::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return;
  auto end = static_cast<std::uint64_t>(status.st_size);
  if (!continues(file.get(), status.st_ino, end)) {
    forget();
    offset_ = 0;
    tail_.clear();
    is_sampled_ = false;
  }
  inode_ = status.st_ino;
  if (end - offset_ <= most_bytes_)
    return read_range(file.get(), offset_, end, true, sink);
  is_sampled_ = true;
  const auto last = end - most_bytes_ / 2;
  const auto blocks = std::max<std::uint64_t>(most_bytes_ / 2 / block_bytes, 1);
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const auto from = offset_ + (last - offset_) / blocks * i;
    read_range(file.get(), from, std::min<std::uint64_t>(from + block_bytes, last), false, sink);
  }
  read_range(file.get(), last, end, false, sink);
}

bool growing_file::continues(int file, ino_t inode, std::uint64_t size) const {
  if (offset_ == 0)
    return true;
  if (inode != inode_ || size < offset_)
    return false;
  auto now = std::string(tail_.size(), '\0');
  const auto got = ::pread(file, now.data(), now.size(), static_cast<off_t>(offset_ - tail_.size()));
  return got == static_cast<ssize_t>(now.size()) && now == tail_;
}

/// A range that is not whole begins within a line.
void growing_file::read_range(int file, std::uint64_t from, std::uint64_t to, bool is_whole, const line_sink& sink) {
  auto rest = std::string{};
  auto skips = !is_whole && from > 0;
  auto begin_of_rest = from;
  for (auto at = from; at < to;) {
    const auto old = rest.size();
    rest.resize(old + static_cast<std::size_t>(std::min<std::uint64_t>(block_bytes, to - at)));
    const auto got = ::pread(file, rest.data() + old, rest.size() - old, static_cast<off_t>(at));
    rest.resize(old + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got <= 0)
      break;
    at += static_cast<std::uint64_t>(got);
    auto begin = std::size_t{0};
    for (auto end = rest.find('\n', old); end != std::string::npos; end = rest.find('\n', begin)) {
      if (!skips)
        sink(std::string_view{rest}.substr(begin, end - begin));
      skips = false;
      begin = end + 1;
    }
    if (begin > 0) {
      const auto kept = std::min(begin, tail_bytes);
      tail_ = rest.substr(begin - kept, kept);
      offset_ = begin_of_rest + begin;
    }
    if (rest.size() - begin > longest_line) {
      // As if it had ended here; what follows is no line.
      begin = rest.size();
      skips = true;
    }
    begin_of_rest += begin;
    rest.erase(0, begin);
  }
}

} // namespace troupe::runtime

#include "http/connection_stream.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe::serving {

namespace {

/// Of a request line and all headers together.
constexpr std::uint64_t max_head_bytes = 32'768;

/// What is kept of a response before it is sent.
constexpr std::size_t written_bytes = 65'536;

/// How much is read, and for how long, after the last response.
constexpr std::size_t linger_bytes = std::size_t{1} << 20;
constexpr auto linger_time = std::chrono::milliseconds{500};

} // namespace

connection_stream::connection_stream(std::unique_ptr<transport> below, std::string peer,
                                     std::chrono::milliseconds send_timeout)
    : below_(std::move(below)), peer_(std::move(peer)), send_timeout_(send_timeout) {}

void connection_stream::begin_request(time_point deadline) {
  deadline_ = deadline;
  is_head_ = true;
  allowed_ = max_head_bytes;
  trouble_ = reading_trouble::none;
}

bool connection_stream::has_buffered() const {
  return next_ < end_ || below_->has_pending();
}

bool connection_stream::fill() {
  next_ = 0;
  end_ = 0;
  // A client that waits for permission to send its body sends nothing before it has it.
  if (!flush())
    return false;
  end_ = below_->receive(received_, deadline_);
  if (end_ == 0)
    trouble_ = std::chrono::steady_clock::now() >= deadline_ ? reading_trouble::late : reading_trouble::ended;
  return end_ > 0;
}

ssize_t connection_stream::read(char* target, size_t size) {
  if (next_ == end_ && !fill())
    return -1;
  const auto count = std::min(size, end_ - next_);
  if (count > allowed_) {
    trouble_ = reading_trouble::too_large;
    return -1;
  }
  allowed_ -= count;
  std::memcpy(target, received_.data() + next_, count);
  next_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t connection_stream::write(const char* bytes, size_t size) {
  written_.append(bytes, size);
  if (written_.size() >= written_bytes && !flush())
    return -1;
  return static_cast<ssize_t>(size);
}

bool connection_stream::flush() {
  if (!written_.empty())
    is_broken_ = is_broken_ || !below_->send(written_, std::chrono::steady_clock::now() + send_timeout_);
  written_.clear();
  return !is_broken_;
}

void connection_stream::linger() {
  if (is_broken_)
    return;
  below_->end();
  deadline_ = std::chrono::steady_clock::now() + linger_time;
  for (std::size_t dropped = 0; dropped < linger_bytes && fill();)
    dropped += end_;
}

void connection_stream::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip = peer_;
  port = 0;
}

void connection_stream::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

} // namespace troupe::serving

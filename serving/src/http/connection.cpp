#include "http/connection.hpp"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <poll.h>
#include <span>
#include <utility>

namespace troupe::serving {

namespace {

/// How much is read, and for how long, after the last response.
constexpr std::size_t linger_bytes = std::size_t{1} << 20;
constexpr auto linger_time = std::chrono::milliseconds{500};

/// Other connections may take the place of one whose handshake takes longer.
constexpr auto handshake_time = std::chrono::seconds{1};

/// As poll; 0 at the deadline.
int poll_until(std::span<pollfd> events, time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    const auto wait = static_cast<int>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max()));
    const auto count = ::poll(events.data(), events.size(), wait);
    if (count >= 0 || errno != EINTR)
      return count;
  }
}

short events_of(io_state what) noexcept {
  return what == io_state::needs_output ? POLLOUT : POLLIN;
}

} // namespace

connection::connection(std::unique_ptr<transport> below, std::string peer, std::chrono::milliseconds send_timeout,
                       const interruptions& events)
    : below_(std::move(below)), peer_(std::move(peer)), send_timeout_(send_timeout), events_(events) {}

wait_outcome connection::begin(time_point deadline) {
  const auto place_until = std::chrono::steady_clock::now() + handshake_time;
  for (;;) {
    const auto state = below_->begin();
    if (state == io_state::done)
      return wait_outcome::ready;
    if (state == io_state::ended)
      return wait_outcome::ended;
    if (const auto waited = await_head(state, deadline, place_until); waited != wait_outcome::ready)
      return waited;
  }
}

template <class Wait>
wait_outcome connection::fill(Wait wait) {
  next_ = 0;
  end_ = 0;
  for (;;) {
    const auto result = below_->receive(buffer_);
    if (result.state == io_state::ended)
      return wait_outcome::ended;
    if (result.state == io_state::done) {
      end_ = result.bytes;
      return wait_outcome::ready;
    }
    if (const auto waited = wait(result.state); waited != wait_outcome::ready)
      return waited;
  }
}

wait_outcome connection::receive(time_point deadline) {
  // One that sends a byte at a time never has to be waited for.
  if (std::chrono::steady_clock::now() >= deadline)
    return wait_outcome::late;
  return fill([&](io_state what) { return await(what, deadline); });
}

wait_outcome connection::receive_head(time_point deadline, time_point place_until) {
  if (std::chrono::steady_clock::now() >= deadline)
    return wait_outcome::late;
  return fill([&](io_state what) { return await_head(what, deadline, place_until); });
}

wait_outcome connection::await(io_state what, time_point deadline) const {
  auto own = pollfd{below_->descriptor(), events_of(what), 0};
  const auto count = poll_until({&own, 1}, deadline);
  return count > 0 ? wait_outcome::ready : count == 0 ? wait_outcome::late : wait_outcome::ended;
}

wait_outcome connection::await_head(io_state what, time_point deadline, time_point place_until) const {
  for (;;) {
    const auto has_place = std::chrono::steady_clock::now() < place_until;
    std::array<pollfd, 3> events{
        {{below_->descriptor(), events_of(what), 0}, {events_.stop, POLLIN, 0}, {events_.crowd, POLLIN, 0}}};
    const auto count =
        poll_until(std::span{events}.first(has_place ? 2 : 3), has_place ? std::min(deadline, place_until) : deadline);
    if (count < 0)
      return wait_outcome::ended;
    // What has come is looked at, whatever else happens.
    if (events[0].revents != 0)
      return wait_outcome::ready;
    if (events[1].revents != 0)
      return wait_outcome::interrupted;
    if (events[2].revents != 0 && events_.leaves_place())
      return wait_outcome::interrupted;
    if (std::chrono::steady_clock::now() >= deadline)
      return wait_outcome::late;
  }
}

bool connection::send(std::string_view bytes) {
  const auto deadline = after(std::chrono::steady_clock::now(), send_timeout_);
  while (!bytes.empty() && !is_broken_) {
    const auto result = below_->send(bytes);
    if (result.state == io_state::done)
      bytes.remove_prefix(result.bytes);
    else
      is_broken_ = result.state == io_state::ended || await(result.state, deadline) != wait_outcome::ready;
  }
  return !is_broken_;
}

void connection::linger() {
  if (is_broken_)
    return;
  end();
  const auto deadline = std::chrono::steady_clock::now() + linger_time;
  for (std::size_t dropped = 0; dropped < linger_bytes && receive(deadline) == wait_outcome::ready;)
    dropped += end_;
}

} // namespace troupe::serving

#include <troupe/runtime/descriptor_link.hpp>

#include "process/descriptor_packets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <string>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace {

using clock = std::chrono::steady_clock;
using peers = std::vector<std::vector<unique_fd>>;

/// When the kernel has too many descriptors under way.
constexpr auto congestion_pause = std::chrono::milliseconds{5};

/// Effectively unlimited, but short enough to be added to a point in time.
constexpr auto longest_limit = std::chrono::milliseconds{std::chrono::hours{24 * 365}};

constexpr auto open_files_advice = "; raise the limit of open files (ulimit -n)";

/// One exchange of one worker.
class attempt {
 public:
  /// `wake_up` becomes readable when one of the tokens is stopped.
  attempt(int socket, int wake_up, const offer_packet& offer, std::chrono::milliseconds limit,
          const std::stop_token& cancelled, const std::stop_token& outdated)
      : socket_(socket),
        wake_up_(wake_up),
        offer_(offer),
        deadline_(clock::now() + std::clamp(limit, std::chrono::milliseconds::zero(), longest_limit)),
        cancelled_(cancelled),
        outdated_(outdated) {}

  [[nodiscard]] expected<void> send(std::span<const int> mine) {
    auto bytes = to_bytes(offer_);
    for (;;) {
      auto outcome = send_packet(socket_, bytes, mine);
      switch (outcome) {
      case send_outcome::sent:
      case send_outcome::closed: // The node may have left word why.
        return {};
      case send_outcome::failed:
        return fail(system_error(where() + ": cannot send descriptors to the node"));
      case send_outcome::full:
      case send_outcome::congested:
        break;
      }
      auto is_full = outcome == send_outcome::full;
      TROUPE_TRY(wait(is_full ? POLLOUT : 0, is_full ? clock::duration::max() : congestion_pause));
    }
  }

  [[nodiscard]] expected<peers> receive() {
    peers result(offer_.what.local_world_size);
    std::size_t known = 0;
    while (known < result.size()) {
      auto packet = receive_packet(socket_);
      switch (packet.what) {
      case received_packet::outcome::none:
        TROUPE_TRY(wait(POLLIN, clock::duration::max()));
        continue;
      case received_packet::outcome::closed:
        return fail(errc::node_lost, where() + ": the node has closed this worker's socket");
      case received_packet::outcome::failed:
        return fail(system_error(where() + ": cannot receive descriptors from the node"));
      case received_packet::outcome::packet:
        break;
      }
      // Those of older groups are closed with the packet. So are the ones of a half lost packet.
      auto answer = parse_answer(packet.bytes);
      if (!answer)
        return fail(errc::internal, where() + ": the node's answer is not one that this program knows");
      if (answer->group.generation.value != 0 && answer->group != offer_.what.group)
        continue;
      if (answer->code != errc::none)
        return fail(answer->code, where() + ": " + answer->text);
      if (packet.out_of_descriptors)
        return fail(errc::io_error, where() + ": descriptors of peers are lost" + open_files_advice);
      if (!take(*answer, std::move(packet.descriptors), known, result))
        return fail(errc::internal, where() + ": the node's answer contradicts itself");
    }
    return result;
  }

 private:
  /// Sorts the descriptors of one packet by rank.
  static bool take(const answer_packet& answer, std::vector<unique_fd> descriptors, std::size_t& known, peers& result) {
    if (answer.first_rank != known || answer.counts.empty() || answer.counts.size() > result.size() - known)
      return false;
    auto next = descriptors.begin();
    for (std::size_t count : answer.counts) {
      if (static_cast<std::size_t>(descriptors.end() - next) < count)
        return false;
      auto last = next + static_cast<std::ptrdiff_t>(count);
      result[known++].assign(std::make_move_iterator(next), std::make_move_iterator(last));
      next = last;
    }
    return next == descriptors.end();
  }

  /// Waits until the socket is ready for `what`, at most for `pause`.
  [[nodiscard]] expected<void> wait(int what, clock::duration pause) {
    auto now = clock::now();
    auto until = pause < deadline_ - now ? now + pause : deadline_;
    for (;;) {
      TROUPE_TRY(check_whether_it_goes_on());
      now = clock::now();
      if (now >= deadline_)
        return fail(errc::timed_out, where() + ": not all workers of this node have offered theirs in time");
      if (now >= until)
        return {};
      std::array<pollfd, 2> events{{{socket_, static_cast<short>(what), 0}, {wake_up_, POLLIN, 0}}};
      auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
      // A socket that we only pause for is left out: its end would be reported again and again.
      auto socket_matters = what != 0;
      auto n = poll(socket_matters ? events.data() : events.data() + 1, socket_matters ? 2 : 1,
                    static_cast<int>(std::min<std::int64_t>(left, 1'000'000)));
      if (n < 0 && errno != EINTR)
        return fail(system_error(where()));
      if (n > 0 && socket_matters && events[0].revents != 0)
        return check_whether_it_goes_on();
    }
  }

  [[nodiscard]] expected<void> check_whether_it_goes_on() const {
    if (cancelled_.stop_requested())
      return fail(errc::aborted, where() + ": cancelled");
    if (outdated_.stop_requested())
      return fail(errc::stale_generation, where() + ": this worker is already in the exchange of a later group");
    return {};
  }

  [[nodiscard]] std::string where() const {
    return fmt::format("the exchange of descriptors of {} (local rank {} of {})", to_string(offer_.what.group),
                       offer_.what.local_rank, offer_.what.local_world_size);
  }

  int socket_;
  int wake_up_;
  const offer_packet& offer_;
  clock::time_point deadline_;
  const std::stop_token& cancelled_;
  const std::stop_token& outdated_;
};

} // namespace

std::string to_string(const descriptor_group& group) {
  if (group.staging == 0)
    return fmt::format("generation {}", group.generation);
  return fmt::format("staging group {} of generation {}", group.staging, group.generation);
}

descriptor_link::descriptor_link(unique_fd socket) noexcept : socket_(std::move(socket)) {
  fcntl(socket_.get(), F_SETFD, FD_CLOEXEC);
}

expected<std::stop_token> descriptor_link::begin(const descriptor_group& group) {
  const auto lock = std::lock_guard{mutex_};
  if (group < newest_)
    return fail(errc::stale_generation,
                fmt::format("{} is over: this worker has begun {}", to_string(group), to_string(newest_)));
  newest_ = group;
  outdated_.request_stop();
  outdated_ = {};
  return outdated_.get_token();
}

expected<std::vector<std::vector<unique_fd>>> descriptor_link::exchange(const descriptor_offer& place,
                                                                        std::span<const int> mine,
                                                                        std::chrono::milliseconds limit,
                                                                        const std::stop_token& cancelled) {
  if (mine.size() > max_offered_descriptors)
    return fail(errc::invalid_argument, fmt::format("a worker offers at most {} descriptors to its node, not {}",
                                                    max_offered_descriptors, mine.size()));
  if (place.local_world_size > max_local_world_size || place.local_rank >= place.local_world_size)
    return fail(errc::invalid_argument, fmt::format("there is no local rank {} among {} workers of a node (at most {})",
                                                    place.local_rank, place.local_world_size, max_local_world_size));
  if (cancelled.stop_requested())
    return fail(errc::aborted,
                fmt::format("the exchange of descriptors of {} was cancelled before it began", to_string(place.group)));
  unique_fd wake_up{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!wake_up)
    return fail(system_error("cannot exchange descriptors"));
  const auto wake = [fd = wake_up.get()] {
    std::uint64_t one = 1;
    [[maybe_unused]] auto n = write(fd, &one, sizeof(one));
  };
  TROUPE_TRY(const auto outdated, begin(place.group));
  std::stop_callback wake_if_cancelled{cancelled, wake};
  std::stop_callback wake_if_outdated{outdated, wake};
  const auto turn = std::lock_guard{socket_mutex_};
  offer_packet offer{place, static_cast<std::uint32_t>(mine.size())};
  attempt self{socket_.get(), wake_up.get(), offer, limit, cancelled, outdated};
  TROUPE_TRY(self.send(mine));
  return self.receive();
}

} // namespace troupe::runtime

// A network between namespaces of this machine, with a delay and a rate, where the kernel has no netem. Each namespace
// gets a TUN device; this process carries packets from one to another until it is killed. See README.md.

#include <troupe/collectives/unique_fd.hpp>

#include <command_line.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <optional>
#include <poll.h>
#include <sched.h>
#include <stdexcept>
#include <string>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

using troupe::collectives::unique_fd;
using clock_type = std::chrono::steady_clock;

constexpr auto device_name = "slow0";

/// Preamble, Ethernet header, checksum and gap of a frame.
constexpr std::size_t frame_overhead = 38;

/// Headers of IP and TCP with time stamps, which each frame of a large packet repeats.
constexpr std::size_t header_bytes = 52;

/// What waits in the switch for one receiver; more is dropped.
constexpr std::size_t switch_bytes = 4 << 20;

/// How far ahead a sender may fill its link. Then its packets wait in its own kernel, as with a real card.
constexpr auto card_buffer = std::chrono::microseconds{500};

/// What precedes each packet: virtio_net_hdr, whose kernel header is not C++.
struct packet_header {
  std::uint8_t flags;
  std::uint8_t segmentation;
  std::uint16_t header_bytes;
  std::uint16_t segment_bytes;
  std::uint16_t checksum_start;
  std::uint16_t checksum_offset;
};
static_assert(sizeof(packet_header) == 10, "the kernel's format");

struct options {
  std::vector<std::string> namespaces;
  std::uint64_t delay_us = 100;
  std::uint64_t megabits = 1000;
};

void require(bool is_well, const std::string& what) {
  if (!is_well)
    throw std::runtime_error{fmt::format("{}: {}", what, std::strerror(errno))};
}

/// A TUN device in a namespace, which takes and gives packets of up to 64 KiB, as a card with segmentation offload
/// does.
unique_fd open_device(const std::string& name) {
  const auto own = unique_fd{::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)};
  const auto there = unique_fd{::open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC)};
  require(there && ::setns(there.get(), CLONE_NEWNET) == 0, "entering the network namespace " + name);
  auto result = unique_fd{::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK)};
  require(result.get() >= 0, "/dev/net/tun");
  ifreq request = {};
  request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  std::strncpy(request.ifr_name, device_name, IFNAMSIZ - 1);
  require(::ioctl(result.get(), TUNSETIFF, &request) == 0, "making a TUN device");
  require(::ioctl(result.get(), TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) == 0, "segmentation offload");
  require(::setns(own.get(), CLONE_NEWNET) == 0, "leaving a network namespace");
  return result;
}

struct packet {
  std::vector<std::byte> bytes;
  std::size_t on_wire = 0;
  clock_type::time_point due;
};

class network {
 public:
  explicit network(const options& how) : delay_(how.delay_us), bytes_per_us_(static_cast<double>(how.megabits) / 8) {
    for (const auto& name : how.namespaces)
      hosts_.push_back({open_device(name), {}, {}, {}, 0});
  }

  [[noreturn]] void carry() {
    for (;;) {
      const auto now = clock_type::now();
      deliver(now);
      wait(now);
      for (auto& from : hosts_)
        take(from);
    }
  }

 private:
  struct host {
    unique_fd device;
    /// When the last packet that it has sent, or is to get, has left the link.
    clock_type::time_point sent_until;
    clock_type::time_point received_until;
    /// Packets on their way to it.
    std::deque<packet> queue;
    std::size_t queued_bytes = 0;
  };

  [[nodiscard]] clock_type::duration time_on_wire(std::size_t bytes) const {
    return std::chrono::duration_cast<clock_type::duration>(
        std::chrono::duration<double, std::micro>(static_cast<double>(bytes) / bytes_per_us_));
  }

  static std::size_t bytes_on_wire(const packet_header& header, std::size_t size) {
    const auto segments = header.segmentation == 0 || header.segment_bytes == 0
                              ? std::size_t{1}
                              : (size + header.segment_bytes - 1) / header.segment_bytes;
    return size + segments * frame_overhead + (segments - 1) * header_bytes;
  }

  /// By the last byte of the destination, which counts from 1. None for anything but IPv4 to one of the hosts.
  [[nodiscard]] host* receiver_of(const std::vector<std::byte>& bytes) {
    constexpr auto last_of_destination = sizeof(packet_header) + 19;
    if (bytes.size() <= last_of_destination || std::to_integer<int>(bytes[sizeof(packet_header)]) >> 4 != 4)
      return nullptr;
    const auto number = std::to_integer<std::size_t>(bytes[last_of_destination]);
    return number >= 1 && number <= hosts_.size() ? &hosts_[number - 1] : nullptr;
  }

  void take(host& from) {
    for (auto now = clock_type::now(); from.sent_until <= now + card_buffer; now = clock_type::now()) {
      const auto size = ::read(from.device.get(), buffer_.data(), buffer_.size());
      if (size <= static_cast<ssize_t>(sizeof(packet_header)))
        return;
      packet next;
      next.bytes.assign(buffer_.begin(), buffer_.begin() + size);
      packet_header header = {};
      std::memcpy(&header, next.bytes.data(), sizeof(header));
      next.on_wire = bytes_on_wire(header, next.bytes.size() - sizeof(header));
      auto* to = receiver_of(next.bytes);
      if (to == nullptr || to->queued_bytes > switch_bytes)
        continue;
      // The switch passes a large packet on while the rest of it still comes.
      const auto takes = time_on_wire(next.on_wire);
      from.sent_until = std::max(now, from.sent_until) + takes;
      to->received_until = std::max(from.sent_until, to->received_until + takes);
      next.due = to->received_until + delay_;
      to->queued_bytes += next.on_wire;
      to->queue.push_back(std::move(next));
    }
  }

  void deliver(clock_type::time_point now) {
    for (auto& to : hosts_)
      for (; !to.queue.empty() && to.queue.front().due <= now; to.queue.pop_front()) {
        to.queued_bytes -= to.queue.front().on_wire;
        // A device that is not up takes nothing.
        [[maybe_unused]] const auto n =
            ::write(to.device.get(), to.queue.front().bytes.data(), to.queue.front().bytes.size());
      }
  }

  /// Until a packet comes or is due.
  void wait(clock_type::time_point now) {
    std::vector<pollfd> wanted;
    auto until = std::optional<clock_type::time_point>{};
    const auto wake_at = [&until](clock_type::time_point when) { until = until ? std::min(*until, when) : when; };
    for (const auto& host : hosts_) {
      if (!host.queue.empty())
        wake_at(host.queue.front().due);
      if (host.sent_until <= now + card_buffer)
        wanted.push_back({host.device.get(), POLLIN, 0});
      else
        wake_at(host.sent_until - card_buffer);
    }
    timespec left = {};
    if (until) {
      const auto ns = std::max<std::int64_t>(std::chrono::nanoseconds{*until - clock_type::now()}.count(), 0);
      left = {ns / 1'000'000'000, ns % 1'000'000'000};
    }
    ::ppoll(wanted.data(), wanted.size(), until ? &left : nullptr, nullptr);
  }

  std::chrono::microseconds delay_;
  double bytes_per_us_;
  std::vector<host> hosts_;
  std::vector<std::byte> buffer_{std::size_t{1} << 17};
};

} // namespace

int main(int argc, char** argv) {
  options wanted;
  CLI::App app{"Carries packets between network namespaces with a delay and a rate, until it is killed. Needs root."};
  app.add_option("--namespaces", wanted.namespaces,
                 "Names. Each gets a device slow0; the caller gives the first the address A.B.C.1, and so on")
      ->delimiter(',')
      ->required();
  app.add_option("--delay", wanted.delay_us, "One way, in microseconds")->capture_default_str();
  app.add_option("--rate", wanted.megabits, "Of each host's link in each direction, in Mbit/s")
      ->check(troupe::apps::positive_number())
      ->capture_default_str();
  if (const auto code = troupe::apps::parse_command_line(app, argc, argv))
    return *code;
  try {
    ::prctl(PR_SET_TIMERSLACK, 1);
    network carrier{wanted};
    std::puts("ready");
    std::fflush(stdout);
    carrier.carry();
  } catch (const std::exception& x) {
    std::fprintf(stderr, "slow_network: %s\n", x.what());
    return EXIT_FAILURE;
  }
}

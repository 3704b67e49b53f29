#include "rank_link.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
#include <optional>
#include <signal.h>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace troupe::bench {

namespace {

using collectives::unique_fd;

constexpr std::size_t max_packet_bytes = 65536;
constexpr std::size_t max_descriptors = 8;

/// One rank's message. At least one byte, to distinguish it from the end of the connection.
struct packet {
  std::string bytes;
  std::vector<unique_fd> descriptors;
};

void send_packet(int to, std::string_view bytes, std::span<const int> descriptors) {
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int) * max_descriptors)] = {};
  iovec data{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = room;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    auto* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  if (::sendmsg(to, &message, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size()))
    throw std::runtime_error{std::string{"the other end of a rank's link is gone: "} + std::strerror(errno)};
}

/// Empty if the other end is closed.
std::optional<packet> receive_packet(int from) {
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int) * max_descriptors)] = {};
  packet result;
  result.bytes.resize(max_packet_bytes);
  iovec data{result.bytes.data(), result.bytes.size()};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  const auto size = ::recvmsg(from, &message, MSG_CMSG_CLOEXEC);
  if (size <= 0)
    return std::nullopt;
  result.bytes.resize(static_cast<std::size_t>(size));
  for (auto* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    std::vector<int> numbers((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(numbers.data(), CMSG_DATA(header), numbers.size() * sizeof(int));
    for (const auto fd : numbers)
      result.descriptors.emplace_back(fd);
  }
  return result;
}

std::vector<packet> all_gather(int socket, std::uint32_t size, std::string_view bytes,
                               std::span<const int> descriptors) {
  auto mine = std::string{"+"};
  mine += bytes;
  send_packet(socket, mine, descriptors);
  std::vector<packet> result;
  while (result.size() < size) {
    auto received = receive_packet(socket);
    if (!received)
      throw std::runtime_error{"another rank has ended too early"};
    received->bytes.erase(0, 1);
    result.push_back(std::move(*received));
  }
  return result;
}

/// The control plane: receives one packet from each rank and sends all of them to each. False if some ranks end while
/// others continue.
bool serve(std::span<const unique_fd> lines) {
  for (;;) {
    std::vector<packet> packets;
    for (const auto& line : lines)
      if (auto received = receive_packet(line.get()))
        packets.push_back(std::move(*received));
    if (packets.size() < lines.size())
      return packets.empty();
    for (const auto& line : lines)
      for (const auto& x : packets) {
        std::vector<int> numbers;
        std::ranges::transform(x.descriptors, std::back_inserter(numbers), &unique_fd::get);
        send_packet(line.get(), x.bytes, numbers);
      }
  }
}

[[noreturn]] void run_rank(rank_link link, const std::function<void(rank_link&)>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto status = EXIT_SUCCESS;
  try {
    body(link);
  } catch (const std::exception& x) {
    std::fprintf(stderr, "rank %u of %u: %s\n", link.rank(), link.size(), x.what());
    status = EXIT_FAILURE;
  }
  std::fflush(nullptr);
  ::_exit(status);
}

} // namespace

std::vector<std::string> rank_link::exchange(std::string_view mine) {
  std::vector<std::string> result;
  for (auto& x : all_gather(socket_.get(), size_, mine, {}))
    result.push_back(std::move(x.bytes));
  return result;
}

std::vector<std::vector<unique_fd>> rank_link::exchange_descriptors(std::span<const int> mine) {
  std::vector<std::vector<unique_fd>> result;
  for (auto& x : all_gather(socket_.get(), size_, {}, mine))
    result.push_back(std::move(x.descriptors));
  result[rank_].clear();
  return result;
}

double rank_link::maximum(double mine) {
  auto result = mine;
  for (const auto& x : exchange({reinterpret_cast<const char*>(&mine), sizeof(mine)})) {
    double theirs = 0;
    std::memcpy(&theirs, x.data(), sizeof(theirs));
    result = std::max(result, theirs);
  }
  return result;
}

bool run_ranks(std::uint32_t size, const std::function<void(rank_link&)>& body) {
  std::vector<unique_fd> lines;
  std::vector<pid_t> processes;
  std::fflush(nullptr);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      throw std::runtime_error{std::string{"socketpair: "} + std::strerror(errno)};
    unique_fd ours{ends[0]}, theirs{ends[1]};
    const auto process = ::fork();
    if (process < 0)
      throw std::runtime_error{std::string{"fork: "} + std::strerror(errno)};
    if (process == 0) {
      // The end of a link is seen only if no other process has its other end.
      lines.clear();
      ours.reset();
      run_rank({std::move(theirs), rank, size}, body);
    }
    processes.push_back(process);
    lines.push_back(std::move(ours));
  }
  auto is_well = false;
  try {
    is_well = serve(lines);
  } catch (const std::exception&) {
    // A failed rank prints the reason itself.
  }
  lines.clear();
  for (const auto process : processes) {
    if (!is_well)
      ::kill(process, SIGKILL);
    auto status = 0;
    is_well = ::waitpid(process, &status, 0) == process && status == 0 && is_well;
  }
  return is_well;
}

} // namespace troupe::bench

#include "rank_link.hpp"

#include <socket_packets.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
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
using namespace troupe::testing;

/// Sends at least one byte, to distinguish a message from the end of the connection.
std::vector<packet> all_gather(int socket, std::uint32_t size, std::string_view bytes,
                               std::span<const int> descriptors) {
  auto mine = std::string{"+"};
  mine += bytes;
  send_packet(socket, mine, descriptors);
  std::vector<packet> result;
  while (result.size() < size) {
    auto received = receive_packet(socket, wait_for_ever);
    if (received.text.empty())
      throw std::runtime_error{"another rank has ended too early"};
    received.text.erase(0, 1);
    result.push_back(std::move(received));
  }
  return result;
}

/// The control plane: receives one packet from each rank and sends all of them to each. False if some ranks end while
/// others continue.
bool serve(std::span<const unique_fd> lines) {
  for (;;) {
    std::vector<packet> packets;
    for (const auto& line : lines)
      if (auto received = receive_packet(line.get(), wait_for_ever); !received.text.empty())
        packets.push_back(std::move(received));
    if (packets.size() < lines.size())
      return packets.empty();
    for (const auto& line : lines)
      for (const auto& x : packets) {
        std::vector<int> numbers;
        std::ranges::transform(x.descriptors, std::back_inserter(numbers), &unique_fd::get);
        send_packet(line.get(), x.text, numbers);
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
    result.push_back(std::move(x.text));
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

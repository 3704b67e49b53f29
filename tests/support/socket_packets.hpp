#pragma once

#include <troupe/collectives/unique_fd.hpp>

#include <cerrno>
#include <cstring>
#include <poll.h>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <system_error>
#include <vector>

/// Packets of text with descriptors, between a process and those it starts. Over sockets of type SOCK_SEQPACKET.
namespace troupe::testing {

struct packet {
  std::string text;
  std::vector<collectives::unique_fd> descriptors;
};

inline constexpr std::size_t max_descriptors = 64;

/// Far longer than any step here takes: a process that needs this long has hung.
inline constexpr int hang_limit_ms = 60'000;
inline constexpr int wait_for_ever = -1;

inline void send_packet(int socket, std::string_view text, std::span<const int> descriptors = {}) {
  auto part = iovec{const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * max_descriptors)] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    auto* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0)
    throw std::system_error{errno, std::generic_category(), "sendmsg"};
}

/// An empty text if the other side is gone. Throws if nothing arrives within the limit.
inline packet receive_packet(int socket, int limit_ms = hang_limit_ms) {
  auto waiting = pollfd{socket, POLLIN, 0};
  int count = 0;
  do
    count = ::poll(&waiting, 1, limit_ms);
  while (count < 0 && errno == EINTR);
  if (count <= 0)
    throw std::runtime_error{"a process says nothing: it has hung"};
  packet result;
  result.text.resize(1 << 16);
  auto part = iovec{result.text.data(), result.text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * max_descriptors)] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const auto size = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  result.text.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
  for (auto* header = CMSG_FIRSTHDR(&message); size >= 0 && header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    std::vector<int> numbers((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(numbers.data(), CMSG_DATA(header), numbers.size() * sizeof(int));
    for (auto fd : numbers)
      result.descriptors.emplace_back(fd);
  }
  return result;
}

} // namespace troupe::testing

#include "process/descriptor_packets.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <sys/uio.h>
#include <type_traits>

namespace troupe::runtime {

namespace {

constexpr std::uint32_t offer_magic = 0x4f445254;  // "TRDO"
constexpr std::uint32_t answer_magic = 0x41445254; // "TRDA"
constexpr std::uint32_t version = 2;
constexpr std::size_t max_text_bytes = 1024;

struct raw_offer {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint64_t generation;
  std::uint64_t staging;
  std::uint32_t local_rank;
  std::uint32_t local_world_size;
  std::uint32_t count;
  std::uint32_t unused;
};

/// Followed by one byte for each rank, then by the text.
struct raw_answer {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint64_t generation;
  std::uint64_t staging;
  std::uint32_t code;
  std::uint32_t first_rank;
  std::uint32_t rank_count;
  std::uint32_t text_bytes;
};

static_assert(sizeof(raw_offer) == 40 && sizeof(raw_answer) == 40, "these bytes are the wire format");
static_assert(sizeof(raw_answer) + max_packet_ranks <= max_packet_bytes &&
                  sizeof(raw_answer) + max_text_bytes <= max_packet_bytes,
              "an answer must fit into a packet");

template <class T>
std::vector<std::byte> bytes_of(const T& x) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<std::byte> result(sizeof(x));
  std::memcpy(result.data(), &x, sizeof(x));
  return result;
}

template <class T>
std::optional<T> start_of(std::span<const std::byte> bytes, std::uint32_t magic) {
  if (bytes.size() < sizeof(T))
    return std::nullopt;
  T result;
  std::memcpy(&result, bytes.data(), sizeof(T));
  if (result.magic != magic || result.version != version)
    return std::nullopt;
  return result;
}

/// A buffer for the descriptors of one packet, with the alignment that the kernel requires.
struct control_buffer {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * max_packet_descriptors)> bytes{};
};

std::vector<unique_fd> take_descriptors(msghdr& message) {
  std::vector<unique_fd> result;
  for (auto* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS)
      continue;
    auto count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(each) + i * sizeof(int), sizeof(fd));
      result.emplace_back(fd);
    }
  }
  return result;
}

} // namespace

std::vector<std::byte> to_bytes(const offer_packet& x) {
  const auto& [group, local_rank, local_world_size] = x.what;
  return bytes_of(
      raw_offer{offer_magic, version, group.generation.value, group.staging, local_rank, local_world_size, x.count, 0});
}

std::vector<std::byte> to_bytes(const answer_packet& x) {
  auto text_bytes = std::min(x.text.size(), max_text_bytes);
  auto head = raw_answer{answer_magic,
                         version,
                         x.group.generation.value,
                         x.group.staging,
                         static_cast<std::uint32_t>(x.code),
                         x.first_rank,
                         static_cast<std::uint32_t>(x.counts.size()),
                         static_cast<std::uint32_t>(text_bytes)};
  std::vector<std::byte> result(sizeof(head) + x.counts.size() + text_bytes);
  auto* next = result.data();
  std::memcpy(next, &head, sizeof(head));
  next = std::ranges::copy(std::as_bytes(std::span{x.counts}), next + sizeof(head)).out;
  std::ranges::copy(std::as_bytes(std::span{x.text}).first(text_bytes), next);
  return result;
}

std::optional<offer_packet> parse_offer(std::span<const std::byte> bytes) {
  auto raw = start_of<raw_offer>(bytes, offer_magic);
  if (!raw || bytes.size() != sizeof(raw_offer))
    return std::nullopt;
  return offer_packet{{{{raw->generation}, raw->staging}, raw->local_rank, raw->local_world_size}, raw->count};
}

std::optional<answer_packet> parse_answer(std::span<const std::byte> bytes) {
  auto raw = start_of<raw_answer>(bytes, answer_magic);
  if (!raw || raw->code > static_cast<std::uint32_t>(errc::internal) ||
      bytes.size() != sizeof(raw_answer) + std::size_t{raw->rank_count} + raw->text_bytes)
    return std::nullopt;
  answer_packet result;
  result.group = {{raw->generation}, raw->staging};
  result.code = static_cast<errc>(raw->code);
  result.first_rank = raw->first_rank;
  for (auto count : bytes.subspan(sizeof(raw_answer), raw->rank_count))
    result.counts.push_back(std::to_integer<std::uint8_t>(count));
  auto text = bytes.last(raw->text_bytes);
  result.text.assign(reinterpret_cast<const char*>(text.data()), text.size());
  return result;
}

send_outcome send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors) {
  iovec content{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  control_buffer control;
  if (!descriptors.empty()) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    auto* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  for (;;) {
    if (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
      return send_outcome::sent;
    switch (errno) {
    case EINTR:
      continue;
    case EAGAIN:
      return send_outcome::full;
    case ETOOMANYREFS:
      return send_outcome::congested;
    case EPIPE:
    case ECONNRESET:
      return send_outcome::closed;
    default:
      return send_outcome::failed;
    }
  }
}

received_packet receive_packet(int socket) {
  received_packet result;
  result.bytes.resize(max_packet_bytes);
  iovec content{result.bytes.data(), result.bytes.size()};
  // Large enough for any packet, so that a truncation means that the limit on open files was reached.
  control_buffer control;
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  auto n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (n < 0 && errno == EINTR)
    n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) {
    using enum received_packet::outcome;
    result.what = errno == EAGAIN ? none : errno == ECONNRESET ? closed : failed;
    return result;
  }
  result.descriptors = take_descriptors(message);
  result.what = n == 0 ? received_packet::outcome::closed : received_packet::outcome::packet;
  // An oversized packet becomes empty and then fails to parse.
  result.bytes.resize((message.msg_flags & MSG_TRUNC) != 0 ? 0 : static_cast<std::size_t>(n));
  result.out_of_descriptors = (message.msg_flags & MSG_CTRUNC) != 0;
  return result;
}

} // namespace troupe::runtime

#pragma once

#include "node/descriptor_table.hpp"

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// The packets between a worker and its node, over a socket pair of type SOCK_SEQPACKET. The two may be different
/// programs, so packets carry a version. They are on one host, so integers are in the host's byte order.
namespace troupe::runtime {

using collectives::unique_fd;

/// How many descriptors the kernel accepts with one packet (SCM_MAX_FD in its source).
inline constexpr std::size_t max_packet_descriptors = 253;

inline constexpr std::size_t max_packet_bytes = 2048;

/// Worker to node, with `count` descriptors attached.
struct offer_packet {
  descriptor_offer what;
  std::uint32_t count = 0;
};

/// Node to worker: descriptors of consecutive local ranks, or a refusal.
struct answer_packet {
  /// Generation 0 in a refusal that concerns any exchange the worker waits for.
  descriptor_group group;

  /// `errc::none` in a packet with descriptors.
  errc code = errc::none;

  /// The rank of the first entry of `counts`.
  std::uint32_t first_rank = 0;

  /// How many of the attached descriptors belong to each rank.
  std::vector<std::uint8_t> counts;

  /// The reason of a refusal.
  std::string text;
};

/// How many ranks one answer can cover.
inline constexpr std::size_t max_packet_ranks = 1024;

[[nodiscard]] std::vector<std::byte> to_bytes(const offer_packet& x);
[[nodiscard]] std::vector<std::byte> to_bytes(const answer_packet& x);

/// Empty for anything but a packet of this version.
[[nodiscard]] std::optional<offer_packet> parse_offer(std::span<const std::byte> bytes);
[[nodiscard]] std::optional<answer_packet> parse_answer(std::span<const std::byte> bytes);

enum class send_outcome : std::uint8_t {
  sent,
  /// The socket is full: wait until it is writable.
  full,
  /// The user has too many descriptors in flight (ETOOMANYREFS). The kernel does not report when some have arrived, so
  /// try again a little later.
  congested,
  closed,
  /// See `errno`.
  failed,
};

/// Does not block.
[[nodiscard]] send_outcome send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors);

struct received_packet {
  enum class outcome : std::uint8_t { packet, none, closed, failed };

  outcome what = outcome::none;
  std::vector<std::byte> bytes;

  /// All close on exec.
  std::vector<unique_fd> descriptors;

  /// The limit on open files was reached, and some descriptors were lost.
  bool out_of_descriptors = false;
};

/// Does not block. An empty packet counts as the end of the connection, because the kernel reports both the same way.
[[nodiscard]] received_packet receive_packet(int socket);

} // namespace troupe::runtime

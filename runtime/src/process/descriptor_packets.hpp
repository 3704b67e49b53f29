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

/// What workers and their node say to each other over a socket pair of whole packets (SOCK_SEQPACKET). A node and a
/// worker may be different programs, so packets carry a version; they are on one host, so numbers are as in memory.
namespace troupe::runtime {

using collectives::unique_fd;

/// What the kernel passes on with one packet (SCM_MAX_FD in its source).
inline constexpr std::size_t max_packet_descriptors = 253;

inline constexpr std::size_t max_packet_bytes = 2048;

/// Worker to node, with `count` descriptors attached.
struct offer_packet {
  descriptor_offer what;
  std::uint32_t count = 0;
};

/// Node to worker: descriptors of consecutive local ranks, or a refusal.
struct answer_packet {
  /// 0 in a refusal that concerns whatever the worker waits for.
  generation_id generation;

  /// `errc::none` in a packet with descriptors.
  errc code = errc::none;

  /// The first rank that `counts` is about.
  std::uint32_t first_rank = 0;

  /// How many of the attached descriptors belong to each rank.
  std::vector<std::uint8_t> counts;

  /// Why it is refused.
  std::string text;
};

/// How many ranks one answer can speak of.
inline constexpr std::size_t max_packet_ranks = 1024;

[[nodiscard]] std::vector<std::byte> to_bytes(const offer_packet& x);
[[nodiscard]] std::vector<std::byte> to_bytes(const answer_packet& x);

/// Nothing when it is no packet of this version.
[[nodiscard]] std::optional<offer_packet> parse_offer(std::span<const std::byte> bytes);
[[nodiscard]] std::optional<answer_packet> parse_answer(std::span<const std::byte> bytes);

enum class send_outcome : std::uint8_t {
  sent,
  /// The socket is full: wait until it can be written to.
  full,
  /// The kernel lets a user have so many descriptors under way and no more (ETOOMANYREFS), and tells nobody when some
  /// have arrived: try again a little later.
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

  /// This process may not have as many open files: some descriptors are lost.
  bool out_of_descriptors = false;
};

/// Does not block. An empty packet counts as the end: the kernel shows both alike.
[[nodiscard]] received_packet receive_packet(int socket);

} // namespace troupe::runtime

#pragma once

#include <troupe/collectives/listener.hpp>
#include <troupe/collectives/tcp_communicator.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <string>

namespace troupe::collectives::tcp {

/// What a rank tells the others over the control plane. Fixed layout, sent as it is: all hosts of a group have the same
/// byte order, which the magic number checks.
struct address_blob {
  std::uint64_t magic = 0x7470'6374'0000'0001;
  std::uint64_t generation = 0;
  std::uint32_t world_size = 0;
  std::uint32_t rank = 0;
  std::uint32_t is_encrypted = 0;
  std::uint16_t family = 0;
  std::uint16_t port = 0;
  std::uint8_t host[16] = {};

  bool operator==(const address_blob&) const = default;
};

[[nodiscard]] std::string encode(const tcp_options& options, const address& at);

/// Reads the blob of `peer`, and checks that it belongs to this rank's group.
[[nodiscard]] expected<address> decode(const tcp_options& options, std::uint32_t peer, const std::string& blob);

/// "rank 1 of 4, generation 2".
[[nodiscard]] std::string describe(const tcp_options& options);

} // namespace troupe::collectives::tcp

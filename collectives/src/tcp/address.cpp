#include "tcp/address.hpp"

#include <cstring>
#include <fmt/format.h>
#include <netinet/in.h>
#include <type_traits>

namespace troupe::collectives::tcp {

std::string describe(const tcp_options& options) {
  return fmt::format("rank {} of {}, generation {}", options.rank, options.world_size, options.generation);
}

std::string encode(const tcp_options& options, const address& at) {
  address_blob blob;
  blob.generation = options.generation.value;
  blob.world_size = options.world_size;
  blob.rank = options.rank.value;
  blob.is_encrypted = options.encrypted ? 1 : 0;
  blob.family = static_cast<std::uint16_t>(at.family());
  blob.port = at.port();
  if (at.family() == AF_INET6)
    std::memcpy(blob.host, &reinterpret_cast<const sockaddr_in6*>(at.data())->sin6_addr, sizeof(in6_addr));
  else
    std::memcpy(blob.host, &reinterpret_cast<const sockaddr_in*>(at.data())->sin_addr, sizeof(in_addr));
  return {reinterpret_cast<const char*>(&blob), sizeof(blob)};
}

expected<address> decode(const tcp_options& options, std::uint32_t peer, const std::string& text) {
  static_assert(std::has_unique_object_representations_v<address_blob>);
  const auto foreign = [&] {
    return fail(errc::mismatch, fmt::format("{}: the blob of rank {} is not from this generation and group; exchange "
                                            "among exactly its members, in rank order",
                                            describe(options), peer));
  };
  address_blob blob;
  if (text.size() != sizeof(blob))
    return foreign();
  std::memcpy(&blob, text.data(), sizeof(blob));
  if (blob.magic != address_blob{}.magic || blob.generation != options.generation.value ||
      blob.world_size != options.world_size || blob.rank != peer)
    return foreign();
  if ((blob.is_encrypted != 0) != options.encrypted)
    return fail(errc::mismatch,
                fmt::format("{}: rank {} {} its messages and this rank does not agree; set encryption "
                            "equally on all ranks",
                            describe(options), peer, blob.is_encrypted != 0 ? "encrypts" : "does not encrypt"));
  if (blob.family == AF_INET6) {
    sockaddr_in6 result{};
    result.sin6_family = AF_INET6;
    result.sin6_port = htons(blob.port);
    std::memcpy(&result.sin6_addr, blob.host, sizeof(in6_addr));
    return address{reinterpret_cast<const sockaddr*>(&result), sizeof(result)};
  }
  if (blob.family != AF_INET)
    return foreign();
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(blob.port);
  std::memcpy(&result.sin_addr, blob.host, sizeof(in_addr));
  return address{reinterpret_cast<const sockaddr*>(&result), sizeof(result)};
}

} // namespace troupe::collectives::tcp

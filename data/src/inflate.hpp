#pragma once

#include <troupe/error.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace troupe::data {

[[nodiscard]] bool is_gzip(std::span<const std::byte> content) noexcept;

/// Unpacks gzip, including several members, up to `limit_bytes`; `complete` says whether that was all. Fails with
/// `errc::damaged`, naming `file`, for a stream that is truncated or does not match its checksum.
struct inflated {
  std::vector<std::byte> bytes;
  bool complete = false;
};
[[nodiscard]] expected<inflated> inflate_gzip(std::span<const std::byte> packed, std::size_t limit_bytes,
                                              const std::string& file);

} // namespace troupe::data

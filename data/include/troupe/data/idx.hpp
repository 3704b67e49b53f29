#pragma once

#include <troupe/data/column.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace troupe::data {

/// Reads a file in the format of the MNIST family: two zero bytes, type, number of dimensions (1 to 4 are supported),
/// the dimensions as big-endian 32-bit numbers, then the values, big-endian. The first dimension is the samples. A file
/// that begins like gzip is unpacked.
///
/// Single-byte values stay in the mapped file; wider types and gzip are converted into memory once. Fails with
/// `errc::not_found` or `errc::io_error`, and with `errc::damaged`, naming the file and what was expected, for a file
/// that is not IDX, or is shorter or longer than its header says.
[[nodiscard]] expected<column> read_idx(const std::filesystem::path& path, std::string column_name);

/// The same from memory. `file` is the name used in messages; `owner` keeps `content` alive.
[[nodiscard]] expected<column> parse_idx(std::span<const std::byte> content, std::shared_ptr<const void> owner,
                                         const std::string& file, std::string column_name);

} // namespace troupe::data

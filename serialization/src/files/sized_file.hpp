#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/files/file_system.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>

namespace troupe::serialization {

/// A file opened for reading, with its size at that time.
struct sized_file {
  std::unique_ptr<file> source;
  std::uint64_t size_bytes = 0;
};

/// Fails as `file_system::open` and `file::size_bytes` do.
[[nodiscard]] inline expected<sized_file> open_sized(const std::filesystem::path& path,
                                                     file_system& files = local_files()) {
  TROUPE_TRY(auto source, files.open(path));
  TROUPE_TRY(auto size, source->size_bytes());
  return sized_file{std::move(source), size};
}

} // namespace troupe::serialization

#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/files/file_system.hpp>
#include <troupe/tensor.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::serialization {

/// The newest version of the format that this build reads, and the one that it writes.
inline constexpr std::uint32_t snapshot_format_version = 1;

/// The manifest's name in a checkpoint's directory.
inline constexpr std::string_view manifest_file_name = "manifest.snapshot";

/// Chunks begin at multiples of this in their file, so that they can be mapped.
inline constexpr std::uint64_t chunk_alignment_bytes = 4096;

/// No chunk is longer.
inline constexpr std::uint64_t max_chunk_bytes = 64 << 20;

/// No manifest's message is longer: it stays below the 64 MiB at which Cap'n Proto's readers stop.
inline constexpr std::uint64_t max_manifest_bytes = 48 << 20;

/// Where verification reads from: what the page cache holds proves nothing about the device.
enum class read_back : std::uint8_t { cached, from_device };

/// Where some bytes of a tensor are, and their checksum.
struct stored_chunk {
  /// Index into `manifest::parts`.
  std::uint32_t part = 0;
  /// Place in the part's file, a multiple of `chunk_alignment_bytes`.
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;
  std::uint64_t xxh3 = 0;

  bool operator==(const stored_chunk&) const = default;
};

/// A tensor and its bytes, which are those of `chunks`, one after the other.
struct stored_tensor {
  tensor_spec spec;
  std::vector<stored_chunk> chunks;

  bool operator==(const stored_tensor&) const = default;
};

/// A file in the checkpoint's directory that holds chunks.
struct part_file {
  /// A plain file name.
  std::string name;
  std::uint64_t size_bytes = 0;

  bool operator==(const part_file&) const = default;
};

/// Everything that a checkpoint says of its state but the tensors' bytes. JSON texts are kept as they are.
struct manifest {
  run_id run;
  step_id step;
  generation_id generation;
  std::uint64_t seed = 0;
  /// V, the number of logical shards.
  std::uint32_t shards = 0;
  /// B, in samples.
  std::uint64_t global_batch = 0;
  /// The version of the canonical summation tree.
  std::uint32_t tree_version = 0;
  std::string program_build_id;
  std::string configuration_json;
  /// SHA-256 of `configuration_json`, in hexadecimal digits.
  std::string configuration_digest;
  std::string data_fingerprint;
  /// An object of named items, compared item by item.
  std::string numerics_fingerprint_json;
  std::map<std::string, double> metrics;
  /// The user's small values; part of the state's identity.
  std::string values_json;
  /// How many workers wrote it.
  std::uint32_t world_size = 0;
  std::chrono::sys_time<std::chrono::milliseconds> created;
  std::vector<part_file> parts;
  /// In the order in which they were tracked; names are unique.
  std::vector<stored_tensor> tensors;
  /// JSON texts by name, kept beside the state: a dataset's cursor, a fitted preprocessor.
  std::map<std::string, std::string> attachments;

  bool operator==(const manifest&) const = default;
};

/// Writes `content` to `path`, whole or not at all, and returns once it is on the device. Fails with
/// `errc::invalid_argument` if it contradicts itself (chunks that do not add up to their tensor, places outside of
/// their part, equal names) or is longer than `max_manifest_bytes`, and as `write_file_durably` does.
[[nodiscard]] expected<void> write_manifest(const std::filesystem::path& path, const manifest& content,
                                            file_system& files = local_files());

/// Reads what `write_manifest` wrote. The checksum is verified first, then the version, then what it says. Fails with
/// `errc::not_found`, `errc::io_error`, `errc::damaged`, or `errc::unsupported_version` for a newer format.
[[nodiscard]] expected<manifest> read_manifest(const std::filesystem::path& path, file_system& files = local_files(),
                                               read_back source = read_back::cached);

/// The manifest that the bytes of its file hold; `path` is for error messages. Any bytes will do: fails as
/// `read_manifest` does.
[[nodiscard]] expected<manifest> parse_manifest(std::span<const std::byte> bytes, const std::filesystem::path& path);

} // namespace troupe::serialization

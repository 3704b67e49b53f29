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

/// The newest format version that this build reads, and the version that it writes.
inline constexpr std::uint32_t snapshot_format_version = 1;

/// The manifest's name in a checkpoint's directory.
inline constexpr std::string_view manifest_file_name = "manifest.snapshot";

/// Chunks begin at multiples of this in their file, so that they can be memory-mapped.
inline constexpr std::uint64_t chunk_alignment_bytes = 4096;

/// The longest chunk.
inline constexpr std::uint64_t max_chunk_bytes = 64 << 20;

/// The longest message of a manifest, below the 64 MiB at which Cap'n Proto's readers stop.
inline constexpr std::uint64_t max_manifest_bytes = 48 << 20;

/// Where verification reads from. The page cache's content proves nothing about the device.
enum class read_back : std::uint8_t { cached, from_device };

/// The place of some bytes of a tensor, and their checksum.
struct stored_chunk {
  /// Index into `manifest::parts`.
  std::uint32_t part = 0;
  /// Offset in the part's file, a multiple of `chunk_alignment_bytes`.
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;
  std::uint64_t xxh3 = 0;

  bool operator==(const stored_chunk&) const = default;
};

/// A tensor; its bytes are the concatenation of `chunks`.
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

/// The content of a checkpoint except the tensors' bytes. JSON texts are kept verbatim.
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
  /// SHA-256 of `configuration_json`, as hexadecimal digits.
  std::string configuration_digest;
  /// A JSON list of what has computed the steps before this program did, as in `run_result::programs`; empty if it has
  /// computed them all.
  std::string earlier_programs_json;
  std::string data_fingerprint;
  /// A JSON object, compared item by item.
  std::string numerics_fingerprint_json;
  std::map<std::string, double> metrics;
  /// The user's small values; part of the state's identity.
  std::string values_json;
  /// How many workers wrote it.
  std::uint32_t world_size = 0;
  /// Whether the run was finished with this step by a decision of its own, before its last.
  bool finishes_run = false;
  std::chrono::sys_time<std::chrono::milliseconds> created;
  std::vector<part_file> parts;
  /// In the order in which they were tracked; names are unique.
  std::vector<stored_tensor> tensors;
  /// JSON texts by name, stored beside the state: a dataset's cursor, a fitted preprocessor.
  std::map<std::string, std::string> attachments;

  bool operator==(const manifest&) const = default;
};

/// Writes `content` to `path` atomically, and returns once it is on the device. Fails with `errc::invalid_argument` if
/// it is inconsistent (chunks that do not add up to their tensor, offsets outside of their part, duplicate names) or
/// longer than `max_manifest_bytes`, and as `write_file_durably` does.
[[nodiscard]] expected<void> write_manifest(const std::filesystem::path& path, const manifest& content,
                                            file_system& files = local_files());

/// Reads a manifest; verifies the checksum first, then the version, then the content. Fails with `errc::not_found`,
/// `errc::io_error`, `errc::damaged`, or `errc::unsupported_version` for a newer format.
[[nodiscard]] expected<manifest> read_manifest(const std::filesystem::path& path, file_system& files = local_files(),
                                               read_back source = read_back::cached);

/// Parses the bytes of a manifest file, which may be arbitrary; `path` is for error messages. Fails as `read_manifest`
/// does.
[[nodiscard]] expected<manifest> parse_manifest(std::span<const std::byte> bytes, const std::filesystem::path& path);

} // namespace troupe::serialization

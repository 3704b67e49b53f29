#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/existing_file.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

/// Export of checkpoints to files that other programs read, and import from such files.
namespace troupe::serialization {

/// Receives how many bytes of tensors have been read since the last call.
using byte_counter = std::function<void(std::uint64_t)>;

/// Writes all tensors of a checkpoint to a safetensors file, and the manifest and the state's SHA-256 to the file's
/// `__metadata__` (keys `troupe.…`). Reads the checkpoint twice, for the digest and for the bytes, and verifies both
/// times. Fails as `write_safetensors` and `checkpoint::read_chunks` do, leaving no file or the old one.
[[nodiscard]] expected<void> export_safetensors(const checkpoint& source, const std::filesystem::path& target,
                                                existing_file existing, const byte_counter& progress = {});

/// Writes one tensor of a checkpoint to an NPY file. Fails with `errc::not_found` if the tensor does not exist, and as
/// `write_npy` and `checkpoint::read_chunks` do.
[[nodiscard]] expected<void> export_npy(const checkpoint& source, std::string_view tensor,
                                        const std::filesystem::path& target, existing_file existing,
                                        const byte_counter& progress = {});

/// Whether to accept a file exported by Troupe whose state was changed on purpose since.
enum class changed_state { refuse, accept };

/// Settings of an import that the file does not contain.
struct import_options {
  /// The step and time for a file that was not exported from a checkpoint.
  step_id step = {};
  std::chrono::sys_time<std::chrono::milliseconds> created = {};
  /// The tensor's name, for an NPY file only; empty: the file's name without its extension.
  std::string tensor = {};
  changed_state changed = changed_state::refuse;
  byte_counter progress = {};
};

/// Creates the checkpoint directory `target` from a safetensors or NPY file, distinguished by their first bytes, and
/// returns it once it is on the device and has been read back. A file of `export_safetensors` yields the original
/// checkpoint; its `state_sha256` is compared. Any other file yields a checkpoint with a new run id, and without
/// configuration and fingerprints: a run can start with its state, but not resume from it. Needs about 256 MiB of
/// memory for safetensors, and twice the array's size for NPY. Fails with `errc::already_exists` if `target` exists,
/// with `errc::damaged` or `errc::invalid_argument` for an invalid file, with `errc::mismatch` for a changed state, or
/// with `errc::io_error`, and then leaves no `target`.
[[nodiscard]] expected<checkpoint> import_checkpoint(const std::filesystem::path& source,
                                                     const std::filesystem::path& target,
                                                     const import_options& options = {});

} // namespace troupe::serialization

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

/// Checkpoints as files that other programs read, and the way back.
namespace troupe::serialization {

/// Hears how many bytes of tensors have been read since the last call.
using byte_counter = std::function<void(std::uint64_t)>;

/// Writes all tensors of a checkpoint into a safetensors file, and what its manifest says into the file's
/// `__metadata__` (keys `troupe.…`), the state's SHA-256 too. Reads the checkpoint twice, for that digest and for the
/// bytes, and verifies what it reads. Fails as `write_safetensors` and `checkpoint::read_chunks` do; then there is no
/// file, or the old one.
[[nodiscard]] expected<void> export_safetensors(const checkpoint& source, const std::filesystem::path& target,
                                                existing_file existing, const byte_counter& progress = {});

/// Writes one tensor of a checkpoint into an NPY file. Fails with `errc::not_found` if there is none of this name, and
/// as `write_npy` and `checkpoint::read_chunks` do.
[[nodiscard]] expected<void> export_npy(const checkpoint& source, std::string_view tensor,
                                        const std::filesystem::path& target, existing_file existing,
                                        const byte_counter& progress = {});

/// Whether a file that Troupe exported may hold another state than it says: somebody has changed it on purpose.
enum class changed_state { refuse, accept };

/// What an import cannot know from the file.
struct import_options {
  /// The step and the time for a file that was not exported from a checkpoint.
  step_id step = {};
  std::chrono::sys_time<std::chrono::milliseconds> created = {};
  /// The tensor's name, for an NPY file alone; empty: the file's name without its ending.
  std::string tensor = {};
  changed_state changed = changed_state::refuse;
  byte_counter progress = {};
};

/// Makes the checkpoint directory `target` from a safetensors or NPY file, told apart by their first bytes, and returns
/// it once it is on the device and has been read back. A file of `export_safetensors` gives its checkpoint again, with
/// its `state_sha256`, which is compared; any other one gives a checkpoint of a new run id without configuration and
/// fingerprints: a run can begin with its state, but not go on from it. Needs the memory of some 256 MiB for
/// safetensors, twice the array's for NPY. Fails with `errc::already_exists` if there is a `target`, with
/// `errc::damaged` or `errc::invalid_argument` for a bad file, with `errc::mismatch` for a changed state, or with
/// `errc::io_error`; then there is no `target`.
[[nodiscard]] expected<checkpoint> import_checkpoint(const std::filesystem::path& source,
                                                     const std::filesystem::path& target,
                                                     const import_options& options = {});

} // namespace troupe::serialization

#pragma once

#include <troupe/error.hpp>
#include <troupe/inspect.hpp>
#include <troupe/serialization/checkpoint/chunk_plan.hpp>
#include <troupe/serialization/checkpoint/manifest.hpp>
#include <troupe/serialization/files/file_system.hpp>
#include <troupe/tensor.hpp>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace troupe::serialization {

/// The checksum of a written chunk.
struct chunk_report {
  /// Index of the tensor, and of the chunk within it, as in the plan.
  std::uint32_t tensor = 0;
  std::uint32_t chunk = 0;
  std::uint64_t xxh3 = 0;
  /// It is stored in its own file `chunk_file_name`, not in the part's.
  bool own_file = false;

  bool operator==(const chunk_report&) const = default;
};

TROUPE_INSPECT(chunk_report, tensor, chunk, xxh3, own_file)

/// Confirms that a part is completely on the device. Sent by the part's writer to the checkpoint store.
struct part_report {
  std::uint32_t part = 0;
  /// The file's name in the checkpoint's directory.
  std::string file;
  std::uint64_t size_bytes = 0;
  /// In the plan's order, which is also their order in the part's file; those stored there begin on a page.
  std::vector<chunk_report> chunks;

  bool operator==(const part_report&) const = default;
};

TROUPE_INSPECT(part_report, part, file, size_bytes, chunks)

/// "part-0003.bin"
[[nodiscard]] std::string part_file_name(std::uint32_t part);

/// "chunk-0012-0003.bin": the name of a chunk's own file.
[[nodiscard]] std::string chunk_file_name(std::uint32_t tensor, std::uint32_t chunk);

/// Writes the file of one part of `plan` to `directory`, which is created if missing; several parts may be written
/// concurrently. Returns once the file and its directory entry are on the device. `tensors` are the planned tensors in
/// the same order, and must not change during the call. Space is reserved first, so that a full disk is detected before
/// anything is written. Fails with `errc::already_exists` if this part's file exists (a failed file is never continued:
/// use the directory of another attempt), `errc::invalid_argument` if plan and tensors do not match, or
/// `errc::io_error`.
[[nodiscard]] expected<part_report> write_part(const std::filesystem::path& directory, std::uint32_t part,
                                               const chunk_plan& plan, std::span<const tensor_view> tensors,
                                               file_system& files = local_files());

/// Fills `parts` and `tensors` of `target` from the plan and the writers' reports, which may be in any order. Fails
/// with `errc::mismatch`, naming the part, if a report is missing, duplicated or does not match the plan.
[[nodiscard]] expected<void> add_parts(manifest& target, std::span<const tensor_spec> tensors, const chunk_plan& plan,
                                       std::span<const part_report> reports);

} // namespace troupe::serialization

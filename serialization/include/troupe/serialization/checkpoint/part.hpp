#pragma once

#include <troupe/error.hpp>
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

/// The checksum of a chunk that has been written.
struct chunk_report {
  /// Index of the tensor, and among its chunks, as in the plan.
  std::uint32_t tensor = 0;
  std::uint32_t chunk = 0;
  std::uint64_t xxh3 = 0;
  /// It has the file `chunk_file_name` to itself, and no place in the part's.
  bool own_file = false;

  bool operator==(const chunk_report&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, chunk_report& x) {
  return f.object(x).fields(f.field("tensor", x.tensor), f.field("chunk", x.chunk), f.field("xxh3", x.xxh3),
                            f.field("own_file", x.own_file));
}

/// Says that a part is on the device, whole. What the writer of a part tells the checkpoint store.
struct part_report {
  std::uint32_t part = 0;
  /// The file's name in the checkpoint's directory.
  std::string file;
  std::uint64_t size_bytes = 0;
  /// In the plan's order, which is that of the part's file, too; each of those that lie there begins on a page.
  std::vector<chunk_report> chunks;

  bool operator==(const part_report&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, part_report& x) {
  return f.object(x).fields(f.field("part", x.part), f.field("file", x.file), f.field("size_bytes", x.size_bytes),
                            f.field("chunks", x.chunks));
}

/// "part-0003.bin"
[[nodiscard]] std::string part_file_name(std::uint32_t part);

/// "chunk-0012-0003.bin": the file of a chunk that lies in none with others.
[[nodiscard]] std::string chunk_file_name(std::uint32_t tensor, std::uint32_t chunk);

/// Writes the file of one part of `plan` into `directory`, which is made if it is missing; the writers of several parts
/// may run at once. Returns once file and directory entry are on the device. The tensors are those that were planned,
/// in that order, and keep still meanwhile. Space is reserved first, so that a full disk shows before anything is
/// written. Fails with `errc::already_exists` if this part was begun before (a failed file is never continued: take
/// another attempt's directory), `errc::invalid_argument` if plan and tensors do not fit, or `errc::io_error`.
[[nodiscard]] expected<part_report> write_part(const std::filesystem::path& directory, std::uint32_t part,
                                               const chunk_plan& plan, std::span<const tensor_view> tensors,
                                               file_system& files = local_files());

/// Fills in `parts` and `tensors` of `target` from what was planned and what the writers report, in any order. Fails
/// with `errc::mismatch`, naming the part, if a report is missing, is there twice or does not follow the plan.
[[nodiscard]] expected<void> add_parts(manifest& target, std::span<const tensor_spec> tensors, const chunk_plan& plan,
                                       std::span<const part_report> reports);

} // namespace troupe::serialization

#include <troupe/serialization/checkpoint_part.hpp>

#include <troupe/serialization/durable_file.hpp>

#include "xxh3_stream.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

constexpr std::array<std::byte, chunk_alignment_bytes> zeros{};

constexpr std::uint64_t piece_bytes = 1 << 20;

expected<void> check_fit(std::uint32_t part, const chunk_plan& plan, std::span<const tensor_view> tensors) {
  if (part >= plan.part_sizes_bytes.size())
    return fail(errc::invalid_argument, "part " + std::to_string(part) + " is not one of the plan's " +
                                            std::to_string(plan.part_sizes_bytes.size()));
  for (const auto& chunk : plan.chunks_of(part)) {
    auto size = chunk.tensor < tensors.size() ? tensors[chunk.tensor].spec.size_bytes() : 0;
    if (chunk.tensor_offset_bytes > size || chunk.length_bytes > size - chunk.tensor_offset_bytes)
      return fail(errc::invalid_argument, "the plan of part " + std::to_string(part) + " does not fit tensor " +
                                              std::to_string(chunk.tensor) + " of " + std::to_string(tensors.size()) +
                                              ": hand over the tensors that were planned, in that order");
  }
  return {};
}

/// Writes a chunk, and the zeros between its end and the next page. Returns the checksum. What is hashed is still in
/// the processor's cache when it is written, so that hashing costs next to nothing.
expected<std::uint64_t> write_chunk(file& target, const planned_chunk& chunk, std::span<const std::byte> bytes) {
  auto checksum = xxh3_stream{};
  for (auto done = std::uint64_t{0}; done < bytes.size();) {
    auto piece = bytes.subspan(done, std::min<std::uint64_t>(piece_bytes, bytes.size() - done));
    checksum.update(piece);
    if (auto written = target.write_at(chunk.offset_bytes + done, piece); !written)
      return fail(std::move(written.error()));
    done += piece.size();
  }
  auto end = chunk.offset_bytes + chunk.length_bytes;
  auto padding = (chunk_alignment_bytes - end % chunk_alignment_bytes) % chunk_alignment_bytes;
  if (auto written = target.write_at(end, std::span{zeros}.first(padding)); !written)
    return fail(std::move(written.error()));
  return checksum.digest();
}

error misfit(std::uint32_t part, const std::string& what) {
  return {errc::mismatch, "the report of part " + std::to_string(part) + ' ' + what};
}

/// The reports in order of part, each once.
expected<std::vector<const part_report*>> sort_reports(std::size_t parts, std::span<const part_report> reports) {
  auto result = std::vector<const part_report*>(parts, nullptr);
  for (const auto& report : reports) {
    if (report.part >= parts)
      return fail(misfit(report.part, "names a part beyond the plan's " + std::to_string(parts)));
    if (result[report.part])
      return fail(misfit(report.part, "came twice"));
    result[report.part] = &report;
  }
  for (std::uint32_t part = 0; part < parts; ++part)
    if (!result[part])
      return fail(misfit(part, "is missing"));
  return result;
}

expected<void> check_report(const part_report& report, const chunk_plan& plan, std::size_t tensors) {
  if (report.size_bytes != plan.part_sizes_bytes[report.part])
    return fail(misfit(report.part, "says " + std::to_string(report.size_bytes) + " bytes, the plan " +
                                        std::to_string(plan.part_sizes_bytes[report.part])));
  auto planned = plan.chunks_of(report.part);
  if (report.chunks.size() != planned.size())
    return fail(misfit(report.part, "has " + std::to_string(report.chunks.size()) + " chunks, the plan " +
                                        std::to_string(planned.size())));
  for (std::size_t i = 0; i < planned.size(); ++i)
    if (report.chunks[i].tensor != planned[i].tensor || report.chunks[i].chunk != planned[i].chunk ||
        planned[i].tensor >= tensors)
      return fail(misfit(report.part, "differs from the plan at chunk " + std::to_string(i)));
  return {};
}

} // namespace

std::string part_file_name(std::uint32_t part) {
  auto digits = std::to_string(part);
  return "part-" + std::string(digits.size() < 4 ? 4 - digits.size() : 0, '0') + digits + ".bin";
}

expected<part_report> write_part(const fs::path& directory, std::uint32_t part, const chunk_plan& plan,
                                 std::span<const tensor_view> tensors, file_system& files) {
  if (auto fits = check_fit(part, plan, tensors); !fits)
    return fail(std::move(fits.error()));
  if (auto made = create_directories_durably(directory, files); !made)
    return fail(std::move(made.error()));
  auto report = part_report{part, part_file_name(part), plan.part_sizes_bytes[part], {}};
  auto target = files.create(directory / report.file);
  if (!target)
    return fail(std::move(target.error()));
  if (auto reserved = (*target)->reserve(report.size_bytes); !reserved)
    return fail(std::move(reserved.error()));
  for (const auto& chunk : plan.chunks_of(part)) {
    auto bytes = std::span<const std::byte>{tensors[chunk.tensor].data + chunk.tensor_offset_bytes, chunk.length_bytes};
    auto checksum = write_chunk(**target, chunk, bytes);
    if (!checksum)
      return fail(std::move(checksum.error()));
    report.chunks.push_back({chunk.tensor, chunk.chunk, *checksum});
  }
  if (auto synced = (*target)->sync(); !synced)
    return fail(std::move(synced.error()));
  if (auto synced = files.sync_directory(directory); !synced)
    return fail(std::move(synced.error()));
  return report;
}

expected<void> add_parts(manifest& target, std::span<const tensor_spec> tensors, const chunk_plan& plan,
                         std::span<const part_report> reports) {
  auto sorted = sort_reports(plan.part_sizes_bytes.size(), reports);
  if (!sorted)
    return fail(std::move(sorted.error()));
  for (const auto* report : *sorted)
    if (auto good = check_report(*report, plan, tensors.size()); !good)
      return good;
  target.parts.clear();
  target.tensors.clear();
  for (const auto& tensor : tensors)
    target.tensors.push_back({tensor, {}});
  for (const auto* report : *sorted) {
    target.parts.push_back({report->file, report->size_bytes});
    auto planned = plan.chunks_of(report->part);
    // The plan's order within a part continues that of the part before: chunks arrive in the tensor's order.
    for (std::size_t i = 0; i < planned.size(); ++i)
      target.tensors[planned[i].tensor].chunks.push_back(
          {report->part, planned[i].offset_bytes, planned[i].length_bytes, report->chunks[i].xxh3});
  }
  return {};
}

} // namespace troupe::serialization

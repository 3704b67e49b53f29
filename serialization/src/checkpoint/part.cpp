#include <troupe/serialization/checkpoint/part.hpp>

#include <troupe/serialization/checkpoint/part_writer.hpp>

#include <fmt/format.h>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

expected<void> check_fit(std::uint32_t part, const chunk_plan& plan, std::span<const tensor_view> tensors) {
  for (const auto& chunk : plan.chunks_of(part)) {
    auto size = chunk.tensor < tensors.size() ? tensors[chunk.tensor].spec.size_bytes() : 0;
    if (chunk.tensor_offset_bytes > size || chunk.length_bytes > size - chunk.tensor_offset_bytes)
      return fail(errc::invalid_argument, fmt::format("the plan of part {} does not match tensor {} of {}: pass the "
                                                      "planned tensors in the same order",
                                                      part, chunk.tensor, tensors.size()));
  }
  return {};
}

error misfit(std::uint32_t part, const std::string& what) {
  return {errc::mismatch, fmt::format("the report of part {} {}", part, what)};
}

/// The reports in the order of their parts; each part has exactly one.
expected<std::vector<const part_report*>> sort_reports(std::size_t parts, std::span<const part_report> reports) {
  auto result = std::vector<const part_report*>(parts, nullptr);
  for (const auto& report : reports) {
    if (report.part >= parts)
      return fail(misfit(report.part, fmt::format("names a part beyond the plan's {}", parts)));
    if (result[report.part])
      return fail(misfit(report.part, "is duplicated"));
    result[report.part] = &report;
  }
  for (std::uint32_t part = 0; part < parts; ++part)
    if (!result[part])
      return fail(misfit(part, "is missing"));
  return result;
}

expected<void> check_report(const part_report& report, const chunk_plan& plan, std::size_t tensors) {
  auto planned = plan.chunks_of(report.part);
  if (report.chunks.size() != planned.size())
    return fail(misfit(report.part, fmt::format("has {} chunks, the plan {}", report.chunks.size(), planned.size())));
  for (std::size_t i = 0; i < planned.size(); ++i)
    if (report.chunks[i].tensor != planned[i].tensor || report.chunks[i].chunk != planned[i].chunk ||
        planned[i].tensor >= tensors)
      return fail(misfit(report.part, fmt::format("differs from the plan at chunk {}", i)));
  auto size = std::uint64_t{0};
  for (std::size_t i = 0; i < planned.size(); ++i)
    size += report.chunks[i].own_file ? 0 : round_up_to_page(planned[i].length_bytes);
  if (report.size_bytes != size)
    return fail(misfit(report.part, fmt::format("says {} bytes, the plan {}", report.size_bytes, size)));
  return {};
}

} // namespace

std::string part_file_name(std::uint32_t part) {
  return fmt::format("part-{:04}.bin", part);
}

std::string chunk_file_name(std::uint32_t tensor, std::uint32_t chunk) {
  return fmt::format("chunk-{:04}-{:04}.bin", tensor, chunk);
}

expected<part_report> write_part(const fs::path& directory, std::uint32_t part, const chunk_plan& plan,
                                 std::span<const tensor_view> tensors, file_system& files) {
  TROUPE_TRY(check_fit(part, plan, tensors));
  TROUPE_TRY(auto writer, part_writer::create(directory, part, plan, files));
  for (const auto& chunk : plan.chunks_of(part))
    TROUPE_TRY(writer.write({tensors[chunk.tensor].data + chunk.tensor_offset_bytes, chunk.length_bytes}));
  return writer.finish();
}

expected<void> add_parts(manifest& target, std::span<const tensor_spec> tensors, const chunk_plan& plan,
                         std::span<const part_report> reports) {
  TROUPE_TRY(auto sorted, sort_reports(plan.part_sizes_bytes.size(), reports));
  for (const auto* report : sorted)
    TROUPE_TRY(check_report(*report, plan, tensors.size()));
  target.parts.clear();
  target.tensors.clear();
  for (const auto& tensor : tensors)
    target.tensors.push_back({tensor, {}});
  for (const auto* report : sorted)
    target.parts.push_back({report->file, report->size_bytes});
  for (const auto* report : sorted) {
    auto planned = plan.chunks_of(report->part);
    auto offset = std::uint64_t{0};
    // Parts continue each other in the plan, so chunks arrive in the tensor's order.
    for (std::size_t i = 0; i < planned.size(); ++i) {
      const auto& chunk = report->chunks[i];
      auto length = planned[i].length_bytes;
      auto& chunks = target.tensors[planned[i].tensor].chunks;
      if (chunk.own_file) {
        chunks.push_back({static_cast<std::uint32_t>(target.parts.size()), 0, length, chunk.xxh3});
        target.parts.push_back({chunk_file_name(chunk.tensor, chunk.chunk), length});
      } else {
        chunks.push_back({report->part, offset, length, chunk.xxh3});
        offset += round_up_to_page(length);
      }
    }
  }
  return {};
}

} // namespace troupe::serialization

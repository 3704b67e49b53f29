#include <troupe/serialization/checkpoint/part.hpp>

#include <troupe/serialization/checkpoint/part_writer.hpp>

#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

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

/// Four at least.
std::string four_digits(std::uint32_t number) {
  auto digits = std::to_string(number);
  return std::string(digits.size() < 4 ? 4 - digits.size() : 0, '0') + digits;
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
  auto planned = plan.chunks_of(report.part);
  if (report.chunks.size() != planned.size())
    return fail(misfit(report.part, "has " + std::to_string(report.chunks.size()) + " chunks, the plan " +
                                        std::to_string(planned.size())));
  for (std::size_t i = 0; i < planned.size(); ++i)
    if (report.chunks[i].tensor != planned[i].tensor || report.chunks[i].chunk != planned[i].chunk ||
        planned[i].tensor >= tensors)
      return fail(misfit(report.part, "differs from the plan at chunk " + std::to_string(i)));
  auto size = std::uint64_t{0};
  for (std::size_t i = 0; i < planned.size(); ++i)
    size += report.chunks[i].own_file ? 0 : round_up_to_page(planned[i].length_bytes);
  if (report.size_bytes != size)
    return fail(
        misfit(report.part, "says " + std::to_string(report.size_bytes) + " bytes, the plan " + std::to_string(size)));
  return {};
}

} // namespace

std::string part_file_name(std::uint32_t part) {
  return "part-" + four_digits(part) + ".bin";
}

std::string chunk_file_name(std::uint32_t tensor, std::uint32_t chunk) {
  return "chunk-" + four_digits(tensor) + '-' + four_digits(chunk) + ".bin";
}

expected<part_report> write_part(const fs::path& directory, std::uint32_t part, const chunk_plan& plan,
                                 std::span<const tensor_view> tensors, file_system& files) {
  if (auto fits = check_fit(part, plan, tensors); !fits)
    return fail(std::move(fits.error()));
  auto writer = part_writer::create(directory, part, plan, files);
  if (!writer)
    return fail(std::move(writer.error()));
  for (const auto& chunk : plan.chunks_of(part))
    if (auto written = writer->write({tensors[chunk.tensor].data + chunk.tensor_offset_bytes, chunk.length_bytes});
        !written)
      return fail(std::move(written.error()));
  return writer->finish();
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
  for (const auto* report : *sorted)
    target.parts.push_back({report->file, report->size_bytes});
  for (const auto* report : *sorted) {
    auto planned = plan.chunks_of(report->part);
    auto offset = std::uint64_t{0};
    // The plan's order within a part continues that of the part before: chunks arrive in the tensor's order.
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

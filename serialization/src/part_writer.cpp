#include <troupe/serialization/part_writer.hpp>

#include <troupe/serialization/durable_file.hpp>

#include "xxh3_stream.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

constexpr std::array<std::byte, chunk_alignment_bytes> zeros{};

/// What is hashed is still in the processor's cache when it is written, so that hashing costs next to nothing.
constexpr std::uint64_t piece_bytes = 1 << 20;

} // namespace

struct part_writer::state {
  file_system* files;
  fs::path directory;
  std::unique_ptr<file> target;
  std::vector<planned_chunk> chunks;
  part_report report;
  std::uint64_t missing_bytes = 0;
  /// Of the chunk that the next byte belongs to, which is that of the next report.
  std::uint64_t written_bytes = 0;
  xxh3_stream checksum;
};

part_writer::part_writer(std::unique_ptr<state> state) : state_(std::move(state)) {}
part_writer::part_writer(part_writer&& other) noexcept = default;
part_writer& part_writer::operator=(part_writer&& other) noexcept = default;
part_writer::~part_writer() = default;

expected<part_writer> part_writer::create(const fs::path& directory, std::uint32_t part, const chunk_plan& plan,
                                          file_system& files) {
  if (part >= plan.part_sizes_bytes.size())
    return fail(errc::invalid_argument, "part " + std::to_string(part) + " is not one of the plan's " +
                                            std::to_string(plan.part_sizes_bytes.size()));
  if (auto made = create_directories_durably(directory, files); !made)
    return fail(std::move(made.error()));
  auto report = part_report{part, part_file_name(part), plan.part_sizes_bytes[part], {}};
  auto target = files.create(directory / report.file);
  if (!target)
    return fail(std::move(target.error()));
  if (auto reserved = (*target)->reserve(report.size_bytes); !reserved)
    return fail(std::move(reserved.error()));
  auto planned = plan.chunks_of(part);
  auto missing = std::uint64_t{0};
  for (const auto& chunk : planned)
    missing += chunk.length_bytes;
  return part_writer{std::unique_ptr<state>(new state{
      &files, directory, std::move(*target), {planned.begin(), planned.end()}, std::move(report), missing, 0, {}})};
}

std::uint64_t part_writer::missing_bytes() const noexcept {
  return state_->missing_bytes;
}

expected<void> part_writer::write(std::span<const std::byte> bytes) {
  auto& s = *state_;
  if (bytes.size() > s.missing_bytes)
    return fail(errc::invalid_argument, std::to_string(bytes.size()) + " bytes for " + s.target->path().string() +
                                            ", which lacks " + std::to_string(s.missing_bytes));
  while (!bytes.empty()) {
    const auto& chunk = s.chunks[s.report.chunks.size()];
    auto piece = bytes.first(std::min<std::size_t>({bytes.size(), chunk.length_bytes - s.written_bytes, piece_bytes}));
    s.checksum.update(piece);
    if (auto written = s.target->write_at(chunk.offset_bytes + s.written_bytes, piece); !written)
      return written;
    s.written_bytes += piece.size();
    s.missing_bytes -= piece.size();
    bytes = bytes.subspan(piece.size());
    if (s.written_bytes < chunk.length_bytes)
      continue;
    auto end = chunk.offset_bytes + chunk.length_bytes;
    auto padding = (chunk_alignment_bytes - end % chunk_alignment_bytes) % chunk_alignment_bytes;
    if (auto padded = s.target->write_at(end, std::span{zeros}.first(padding)); !padded)
      return padded;
    s.report.chunks.push_back({chunk.tensor, chunk.chunk, s.checksum.digest()});
    s.checksum = {};
    s.written_bytes = 0;
  }
  return {};
}

expected<part_report> part_writer::finish() {
  auto& s = *state_;
  if (s.missing_bytes > 0)
    return fail(errc::invalid_argument,
                s.target->path().string() + " lacks " + std::to_string(s.missing_bytes) + " bytes: it is not whole");
  if (auto synced = s.target->sync(); !synced)
    return fail(std::move(synced.error()));
  if (auto synced = s.files->sync_directory(s.directory); !synced)
    return fail(std::move(synced.error()));
  return s.report;
}

} // namespace troupe::serialization

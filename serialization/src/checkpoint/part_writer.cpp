#include <troupe/serialization/checkpoint/part_writer.hpp>

#include <troupe/serialization/files/digest.hpp>
#include <troupe/serialization/files/durable_file.hpp>

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <utility>
#include <vector>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

constexpr std::array<std::byte, chunk_alignment_bytes> zeros{};

/// Small enough that a hashed piece is still in the processor's cache when it is written, which makes hashing cheap.
constexpr std::uint64_t write_piece_bytes = 1 << 20;

} // namespace

struct part_writer::state {
  struct chunk {
    planned_chunk planned;
    placed_chunk placed;
    /// Offset in the part's file.
    std::uint64_t offset_bytes = 0;
  };

  /// Reports links up to the next chunk to be written.
  void report_links() {

    while (report.chunks.size() < chunks.size() && next().placed.place == chunk_place::link)
      finish_chunk(next().placed.xxh3);
  }

  [[nodiscard]] const chunk& next() const { return chunks[report.chunks.size()]; }

  void finish_chunk(std::uint64_t xxh3) {
    const auto& done = next();
    report.chunks.push_back({done.planned.tensor, done.planned.chunk, xxh3, done.placed.place != chunk_place::part});
  }

  expected<void> begin_own_file() {
    const auto& planned = next().planned;
    TROUPE_TRY(auto created, files->create(directory / chunk_file_name(planned.tensor, planned.chunk)));
    own_file = std::move(created);
    return own_file->reserve(planned.length_bytes);
  }

  expected<void> write_piece(std::span<const std::byte> piece) {
    if (next().placed.place == chunk_place::part)
      return target->write_at(next().offset_bytes + written_bytes, piece);
    if (written_bytes == 0)
      TROUPE_TRY(begin_own_file());
    return own_file->write_at(written_bytes, piece);
  }

  /// Syncs a chunk's own file, or pads up to the next page of the part's.
  expected<void> end_chunk() {
    if (own_file) {
      auto synced = own_file->sync();
      own_file.reset();
      return synced;
    }
    auto length = next().planned.length_bytes;
    return target->write_at(next().offset_bytes + length, std::span{zeros}.first(round_up_to_page(length) - length));
  }

  file_system* files;
  fs::path directory;
  std::unique_ptr<file> target;
  std::vector<chunk> chunks;
  part_report report;
  std::uint64_t missing_bytes = 0;
  /// Bytes written of the current chunk, the one that the next report is for.
  std::uint64_t written_bytes = 0;
  xxh3_stream checksum;
  std::unique_ptr<file> own_file;
};

part_writer::part_writer(std::unique_ptr<state> state) : state_(std::move(state)) {}
part_writer::part_writer(part_writer&& other) noexcept = default;
part_writer& part_writer::operator=(part_writer&& other) noexcept = default;
part_writer::~part_writer() = default;

expected<part_writer> part_writer::create(const fs::path& directory, std::uint32_t part, const chunk_plan& plan,
                                          file_system& files, std::span<const placed_chunk> places) {
  if (part >= plan.part_sizes_bytes.size())
    return fail(errc::invalid_argument,
                fmt::format("part {} is not one of the plan's {}", part, plan.part_sizes_bytes.size()));
  auto planned = plan.chunks_of(part);
  if (!places.empty() && places.size() != planned.size())
    return fail(errc::invalid_argument,
                fmt::format("{} places for the {} chunks of part {}", places.size(), planned.size(), part));
  auto next = std::unique_ptr<state>(new state{&files, directory, {}, {}, {}, 0, 0, {}, {}});
  auto size = std::uint64_t{0};
  for (std::size_t i = 0; i < planned.size(); ++i) {
    auto placed = places.empty() ? placed_chunk{} : places[i];
    next->chunks.push_back({planned[i], placed, size});
    size += placed.place == chunk_place::part ? round_up_to_page(planned[i].length_bytes) : 0;
    next->missing_bytes += placed.place == chunk_place::link ? 0 : planned[i].length_bytes;
  }
  next->report = {part, part_file_name(part), size, {}};
  TROUPE_TRY(create_directories_durably(directory, files));
  TROUPE_TRY(auto target, files.create(directory / next->report.file));
  next->target = std::move(target);
  TROUPE_TRY(next->target->reserve(size));
  next->report_links();
  return part_writer{std::move(next)};
}

std::uint64_t part_writer::missing_bytes() const noexcept {
  return state_->missing_bytes;
}

expected<void> part_writer::write(std::span<const std::byte> bytes) {
  auto& s = *state_;
  if (bytes.size() > s.missing_bytes)
    return fail(errc::invalid_argument, fmt::format("{} bytes for {}, which is missing only {}", bytes.size(),
                                                    s.target->path().string(), s.missing_bytes));
  while (!bytes.empty()) {
    auto length = s.next().planned.length_bytes;
    auto piece = bytes.first(std::min<std::size_t>({bytes.size(), length - s.written_bytes, write_piece_bytes}));
    s.checksum.update(piece);
    TROUPE_TRY(s.write_piece(piece));
    s.written_bytes += piece.size();
    s.missing_bytes -= piece.size();
    bytes = bytes.subspan(piece.size());
    if (s.written_bytes < length)
      continue;
    TROUPE_TRY(s.end_chunk());
    s.finish_chunk(s.checksum.digest());
    s.checksum = {};
    s.written_bytes = 0;
    s.report_links();
  }
  return {};
}

expected<part_report> part_writer::finish() {
  auto& s = *state_;
  if (s.missing_bytes > 0)
    return fail(errc::invalid_argument,
                fmt::format("{} is incomplete: {} bytes are missing", s.target->path().string(), s.missing_bytes));
  TROUPE_TRY(s.target->sync());
  TROUPE_TRY(s.files->sync_directory(s.directory));
  return s.report;
}

} // namespace troupe::serialization

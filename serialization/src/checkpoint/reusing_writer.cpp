#include <troupe/serialization/checkpoint/reusing_writer.hpp>

#include <troupe/serialization/files/digest.hpp>
#include <troupe/serialization/files/durable_file.hpp>

#include "files/sized_file.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

/// How many bytes are processed between two checks for a stop.
constexpr std::size_t reused_piece_bytes = std::size_t{4} << 20;

error not_needed() {
  return {errc::aborted, "the checkpoint is no longer needed"};
}

} // namespace

reusing_writer::reusing_writer(reuse_policy policy, file_system& files) : policy_(policy), files_(&files) {}

expected<part_report> reusing_writer::write(const fs::path& directory, std::uint32_t part, const chunk_plan& plan,
                                            std::span<const std::byte> bytes, const std::stop_token& stop) {
  memory_.begun();
  auto planned = plan.chunks_of(part);
  auto total = std::uint64_t{0};
  for (const auto& chunk : planned)
    total += chunk.length_bytes;
  if (total != bytes.size())
    return fail(errc::invalid_argument,
                fmt::format("{} bytes for part {}, which has {} in the plan", bytes.size(), part, total));
  auto known = memory_.known(plan, part);
  auto places = std::vector<placed_chunk>{};
  if (!known.empty()) {
    // Links are made before the part's file.
    TROUPE_TRY(create_directories_durably(directory, *files_));
    auto rest = bytes;
    for (std::size_t i = 0; i < planned.size(); ++i) {
      TROUPE_TRY(auto placed, place(directory, planned[i], known[i], rest.first(planned[i].length_bytes), stop));
      places.push_back(placed);
      rest = rest.subspan(planned[i].length_bytes);
    }
  }
  TROUPE_TRY(auto writer, part_writer::create(directory, part, plan, *files_, places));
  auto rest = bytes;
  for (std::size_t i = 0; i < planned.size(); ++i) {
    auto chunk = rest.first(planned[i].length_bytes);
    rest = rest.subspan(chunk.size());
    if (!places.empty() && places[i].place == chunk_place::link)
      continue;
    while (!chunk.empty()) {
      if (stop.stop_requested())
        return fail(not_needed());
      auto piece = chunk.first(std::min(chunk.size(), reused_piece_bytes));
      TROUPE_TRY(writer.write(piece));
      chunk = chunk.subspan(piece.size());
    }
  }
  auto report = writer.finish();
  if (!report)
    return report;
  auto chunks = std::vector<known_chunk>{};
  for (std::size_t i = 0; i < planned.size(); ++i) {
    auto is_link = !places.empty() && places[i].place == chunk_place::link;
    auto uses = is_link ? known[i].checkpoints + 1 : std::uint32_t{report->chunks[i].own_file};
    chunks.push_back({report->chunks[i].xxh3, uses});
  }
  memory_.written(plan, part, std::move(chunks));
  return report;
}

void reusing_writer::committed(fs::path directory) {
  memory_.committed(std::move(directory));
}

std::vector<std::string> reusing_writer::take_notices() {
  return std::exchange(notices_, {});
}

expected<placed_chunk> reusing_writer::place(const fs::path& directory, const planned_chunk& chunk,
                                             const known_chunk& before, std::span<const std::byte> bytes,
                                             const std::stop_token& stop) {
  if (stop.stop_requested())
    return fail(not_needed());
  if (bytes.size() < policy_.least_bytes)
    return placed_chunk{};
  auto checksum = xxh3(bytes);
  auto decided = decide_chunk(bytes.size(), checksum, before, policy_).place;
  if (decided != chunk_place::link)
    return placed_chunk{decided, 0};
  auto name = chunk_file_name(chunk.tensor, chunk.chunk);
  TROUPE_TRY(auto taken, take_over(memory_.directory() / name, directory / name, bytes, stop));
  return taken ? placed_chunk{chunk_place::link, checksum} : placed_chunk{chunk_place::own_file, 0};
}

/// Links first, then reads: so the compared file stays even if the older directory is removed meanwhile.
expected<bool> reusing_writer::take_over(const fs::path& from, const fs::path& to, std::span<const std::byte> bytes,
                                         const std::stop_token& stop) {
  auto linked = files_->link(from, to);
  // The older checkpoint may have been removed. If the device fails, the write that follows reports it.
  if (!linked || !*linked)
    return false;
  auto same = compare(to, bytes, stop);
  if (same)
    return true;
  if (same.error().code == errc::aborted)
    return fail(std::move(same.error()));
  notices_.push_back(fmt::format("{} cannot be reused, and is written again: {}", from.string(), same.error().message));
  TROUPE_TRY(files_->remove(to));
  return false;
}

expected<void> reusing_writer::compare(const fs::path& path, std::span<const std::byte> bytes,
                                       const std::stop_token& stop) const {
  TROUPE_TRY(auto opened, open_sized(path, *files_));
  const auto& [source, size] = opened;
  if (size != bytes.size())
    return fail(errc::damaged, fmt::format("{} has {} bytes of {}", path.string(), size, bytes.size()));
  source->drop_cached();

  auto buffer = std::vector<std::byte>(std::min(bytes.size(), reused_piece_bytes));
  for (std::size_t done = 0; done < bytes.size();) {
    if (stop.stop_requested())
      return fail(not_needed());
    auto piece = std::span{buffer}.first(std::min(buffer.size(), bytes.size() - done));
    TROUPE_TRY(source->read_at(done, piece));
    // Equal 64-bit checksums do not prove equality.
    if (std::memcmp(piece.data(), bytes.data() + done, piece.size()) != 0)
      return fail(errc::damaged,
                  fmt::format("{} differs after byte {} although the checksum is equal", path.string(), done));
    done += piece.size();
  }
  return {};
}

} // namespace troupe::serialization

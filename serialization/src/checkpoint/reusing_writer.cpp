#include <troupe/serialization/checkpoint/reusing_writer.hpp>

#include <troupe/serialization/files/digest.hpp>
#include <troupe/serialization/files/durable_file.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

/// Whether a part is still wanted is looked up once for so many bytes.
constexpr std::size_t piece_bytes = std::size_t{4} << 20;

error unwanted() {
  return {errc::aborted, "the checkpoint is not wanted any more"};
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
    return fail(errc::invalid_argument, std::to_string(bytes.size()) + " bytes for part " + std::to_string(part) +
                                            ", of which the plan has " + std::to_string(total));
  auto known = memory_.known(plan, part);
  auto places = std::vector<placed_chunk>{};
  if (!known.empty()) {
    // Links are made before the part's file is.
    if (auto made = create_directories_durably(directory, *files_); !made)
      return fail(std::move(made.error()));
    auto rest = bytes;
    for (std::size_t i = 0; i < planned.size(); ++i) {
      auto placed = place(directory, planned[i], known[i], rest.first(planned[i].length_bytes), stop);
      if (!placed)
        return fail(std::move(placed.error()));
      places.push_back(*placed);
      rest = rest.subspan(planned[i].length_bytes);
    }
  }
  auto writer = part_writer::create(directory, part, plan, *files_, places);
  if (!writer)
    return fail(std::move(writer.error()));
  auto rest = bytes;
  for (std::size_t i = 0; i < planned.size(); ++i) {
    auto chunk = rest.first(planned[i].length_bytes);
    rest = rest.subspan(chunk.size());
    if (!places.empty() && places[i].place == chunk_place::link)
      continue;
    while (!chunk.empty()) {
      if (stop.stop_requested())
        return fail(unwanted());
      auto piece = chunk.first(std::min(chunk.size(), piece_bytes));
      if (auto written = writer->write(piece); !written)
        return fail(std::move(written.error()));
      chunk = chunk.subspan(piece.size());
    }
  }
  auto report = writer->finish();
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
    return fail(unwanted());
  if (bytes.size() < policy_.least_bytes)
    return placed_chunk{};
  auto checksum = xxh3(bytes);
  auto decided = decide_chunk(bytes.size(), checksum, before, policy_).place;
  if (decided != chunk_place::link)
    return placed_chunk{decided, 0};
  auto name = chunk_file_name(chunk.tensor, chunk.chunk);
  auto taken = take_over(memory_.directory() / name, directory / name, bytes, stop);
  if (!taken)
    return fail(std::move(taken.error()));
  return *taken ? placed_chunk{chunk_place::link, checksum} : placed_chunk{chunk_place::own_file, 0};
}

/// The link comes first: what is read is then what stays, whatever becomes of the older directory meanwhile.
expected<bool> reusing_writer::take_over(const fs::path& from, const fs::path& to, std::span<const std::byte> bytes,
                                         const std::stop_token& stop) {
  auto linked = files_->link(from, to);
  // A checkpoint that was removed, or a device that fails: writing will tell.
  if (!linked || !*linked)
    return false;
  auto same = compare(to, bytes, stop);
  if (same)
    return true;
  if (same.error().code == errc::aborted)
    return fail(std::move(same.error()));
  notices_.push_back(from.string() + " cannot be used again, and is written afresh: " + same.error().message);
  if (auto removed = files_->remove(to); !removed)
    return fail(std::move(removed.error()));
  return false;
}

expected<void> reusing_writer::compare(const fs::path& path, std::span<const std::byte> bytes,
                                       const std::stop_token& stop) const {
  auto opened = files_->open(path);
  if (!opened)
    return fail(std::move(opened.error()));
  auto size = (*opened)->size_bytes();
  if (!size)
    return fail(std::move(size.error()));
  if (*size != bytes.size())
    return fail(errc::damaged,
                path.string() + " has " + std::to_string(*size) + " bytes of " + std::to_string(bytes.size()));
  (*opened)->drop_cached();
  auto buffer = std::vector<std::byte>(std::min(bytes.size(), piece_bytes));
  for (std::size_t done = 0; done < bytes.size();) {
    if (stop.stop_requested())
      return fail(unwanted());
    auto piece = std::span{buffer}.first(std::min(buffer.size(), bytes.size() - done));
    if (auto read = (*opened)->read_at(done, piece); !read)
      return read;
    // Equal checksums of 64 bits are no proof.
    if (std::memcmp(piece.data(), bytes.data() + done, piece.size()) != 0)
      return fail(errc::damaged,
                  path.string() + " has other bytes after byte " + std::to_string(done) + " than the checksum says");
    done += piece.size();
  }
  return {};
}

} // namespace troupe::serialization

#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/digest.hpp>

#include "files/directory_scan.hpp"
#include "files/parallel.hpp"
#include "files/sized_file.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <memory>
#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

/// The size of one read: small enough to be hashed while it is still in the cache.
constexpr std::uint64_t read_piece_bytes = 512 << 10;

/// The bytes that one thread verifies at a time if chunks are small.
constexpr std::uint64_t stretch_bytes = 8 << 20;

/// A range of a part's file: a chunk, or, without a tensor, padding.
struct region {
  std::uint32_t part = 0;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  const stored_tensor* tensor = nullptr;
  std::size_t chunk = 0;

  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return last - first; }
};

/// All regions of all parts, ordered by part and offset. Chunks may share bytes.
std::vector<region> regions_of(const manifest& content) {
  auto chunks = std::vector<region>{};
  for (const auto& tensor : content.tensors)
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
      const auto& place = tensor.chunks[i];
      chunks.push_back({place.part, place.offset_bytes, place.offset_bytes + place.length_bytes, &tensor, i});
    }
  std::ranges::stable_sort(chunks, {}, [](const region& x) { return std::pair{x.part, x.first}; });
  auto result = std::vector<region>{};
  auto next = chunks.begin();
  for (std::uint32_t part = 0; part < content.parts.size(); ++part) {
    auto covered = std::uint64_t{0};
    auto add_padding_up_to = [&](std::uint64_t place) {
      if (place > covered)
        result.push_back({part, covered, place});
      covered = std::max(covered, place);
    };
    for (; next != chunks.end() && next->part == part; ++next) {
      add_padding_up_to(next->first);
      result.push_back(*next);
      covered = std::max(covered, next->last);
    }
    add_padding_up_to(content.parts[part].size_bytes);
  }
  return result;
}

/// Groups regions of one part for a thread.
std::vector<std::span<const region>> stretches_of(std::span<const region> regions) {
  auto result = std::vector<std::span<const region>>{};
  for (std::size_t first = 0, i = 0; i < regions.size(); first = i) {
    for (auto size = std::uint64_t{0};
         i < regions.size() && regions[i].part == regions[first].part && size < stretch_bytes; ++i)
      size += regions[i].size_bytes();
    result.push_back(regions.subspan(first, i - first));
  }
  return result;
}

error chunk_damage(const stored_tensor& tensor, std::size_t chunk, const fs::path& path) {
  const auto& place = tensor.chunks[chunk];
  return {errc::damaged, fmt::format("{} is damaged: tensor \"{}\", chunk {}, the {} bytes at offset {} do not match "
                                     "their checksum; use another checkpoint",
                                     path.string(), tensor.spec.name, chunk, place.length_bytes, place.offset_bytes)};
}

/// A file missing from a committed checkpoint is damage.
error missing_is_damage(error reason) {
  if (reason.code == errc::not_found)
    return {errc::damaged, fmt::format("the checkpoint is damaged: {}; use another checkpoint", reason.message)};
  return reason;
}

/// Opens a part and checks its size.
expected<std::unique_ptr<file>> open_part(const fs::path& directory, const part_file& part, file_system& files) {
  auto opened = open_sized(directory / part.name, files);
  if (!opened)
    return fail(missing_is_damage(std::move(opened.error())));
  auto& [source, size] = *opened;
  if (size != part.size_bytes)
    return fail(errc::damaged, fmt::format("{} is damaged: it has {} bytes of {}; use another checkpoint",
                                           source->path().string(), size, part.size_bytes));
  return std::move(source);
}

/// Passes the bytes from `first` to `last` to `consume`, piece by piece with their offset.
template <class Consume>
expected<void> read_pieces(const file& source, std::uint64_t first, std::uint64_t last, std::vector<std::byte>& buffer,
                           Consume consume) {
  for (auto done = first; done < last;) {
    auto piece = std::span{buffer}.first(std::min<std::uint64_t>(buffer.size(), last - done));
    TROUPE_TRY(source.read_at(done, piece));
    if (expected<void> good = consume(done, std::span<const std::byte>{piece}); !good)
      return good;
    done += piece.size();
  }
  return {};
}

expected<void> verify_padding(const file& source, const region& place, std::vector<std::byte>& buffer) {
  return read_pieces(source, place.first, place.last, buffer,
                     [&](std::uint64_t offset, std::span<const std::byte> bytes) -> expected<void> {
                       auto found = std::ranges::find_if(bytes, [](std::byte x) { return x != std::byte{}; });
                       if (found == bytes.end())
                         return {};
                       auto where = offset + static_cast<std::uint64_t>(found - bytes.begin());
                       return fail(errc::damaged, fmt::format("{} is damaged: the padding at offset {} is not zero; "
                                                              "use another checkpoint",
                                                              source.path().string(), where));
                     });
}

expected<void> verify_chunk(const file& source, const region& chunk, std::vector<std::byte>& buffer) {
  auto checksum = xxh3_stream{};
  auto read = read_pieces(source, chunk.first, chunk.last, buffer,
                          [&](std::uint64_t, std::span<const std::byte> bytes) -> expected<void> {
                            checksum.update(bytes);
                            return {};
                          });
  if (read && checksum.digest() != chunk.tensor->chunks[chunk.chunk].xxh3)
    return fail(chunk_damage(*chunk.tensor, chunk.chunk, source.path()));
  return read;
}

expected<void> verify_stretch(const file& source, std::span<const region> regions) {
  auto longest = std::ranges::max(regions, {}, &region::size_bytes).size_bytes();
  auto buffer = std::vector<std::byte>(std::min(longest, read_piece_bytes));
  for (const auto& each : regions) {
    auto good = each.tensor != nullptr ? verify_chunk(source, each, buffer) : verify_padding(source, each, buffer);
    if (!good)
      return good;
  }
  return {};
}

expected<checkpoint> open_verified(const fs::path& directory, file_system& files) {
  auto result = checkpoint::open(directory, files);
  if (!result)
    return result;
  TROUPE_TRY(result->verify());
  return result;
}

} // namespace

checkpoint::checkpoint(fs::path directory, manifest content, file_system& files)
    : directory_(std::move(directory)), content_(std::move(content)), files_(&files) {
  for (std::size_t i = 0; i < content_.tensors.size(); ++i)
    index_by_name_.emplace(content_.tensors[i].spec.name, i);
}

expected<checkpoint> checkpoint::open(const fs::path& directory, file_system& files, read_back source) {
  TROUPE_TRY(auto found, files.look_at(directory));
  if (found != entry_kind::directory)
    return fail(errc::not_found, fmt::format("there is no checkpoint at {}", directory.string()));
  auto content = read_manifest(directory / manifest_file_name, files, source);
  if (!content)
    return fail(missing_is_damage(std::move(content.error())));
  for (const auto& part : content->parts)
    TROUPE_TRY(open_part(directory, part, files));
  return checkpoint{directory, std::move(*content), files};
}

std::optional<std::size_t> checkpoint::find(std::string_view name) const {
  auto found = index_by_name_.find(name);
  return found == index_by_name_.end() ? std::nullopt : std::optional{found->second};
}

expected<const stored_tensor*> checkpoint::tensor_at(std::size_t index) const {
  if (index < content_.tensors.size())
    return &content_.tensors[index];
  return fail(errc::not_found, fmt::format("{} holds {} tensors, none at index {}", directory_.string(),
                                           content_.tensors.size(), index));
}

expected<void> checkpoint::check_target(const stored_tensor& tensor, std::span<const std::byte> target) const {
  if (target.size() == tensor.spec.size_bytes())
    return {};
  return fail(errc::invalid_argument,
              fmt::format("tensor \"{}\" of {} has {} bytes, its target has {}", tensor.spec.name, directory_.string(),
                          tensor.spec.size_bytes(), target.size()));
}

expected<void> checkpoint::read_tensor(std::size_t index, std::span<std::byte> target, unsigned threads) const {
  TROUPE_TRY(auto tensor, tensor_at(index));
  TROUPE_TRY(check_target(*tensor, target));
  return read_places(places_of(*tensor, target), threads);
}

expected<void> checkpoint::read_tensor(std::string_view name, std::span<std::byte> target, unsigned threads) const {
  if (auto index = find(name))
    return read_tensor(*index, target, threads);
  return fail(errc::not_found, fmt::format("{} holds no tensor \"{}\"", directory_.string(), name));
}

expected<void> checkpoint::read_tensors(std::span<const std::span<std::byte>> targets, unsigned threads) const {
  if (targets.size() != content_.tensors.size())
    return fail(errc::invalid_argument, fmt::format("{} holds {} tensors, but there are {} targets",
                                                    directory_.string(), content_.tensors.size(), targets.size()));
  auto places = std::vector<chunk_place>{};
  for (std::size_t i = 0; i < targets.size(); ++i) {
    TROUPE_TRY(check_target(content_.tensors[i], targets[i]));
    std::ranges::copy(places_of(content_.tensors[i], targets[i]), std::back_inserter(places));
  }
  return read_places(places, threads);
}

std::vector<checkpoint::chunk_place> checkpoint::places_of(const stored_tensor& tensor, std::span<std::byte> target) {
  auto result = std::vector<chunk_place>{};
  for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
    auto length = tensor.chunks[i].length_bytes;
    result.push_back({&tensor, i, target.first(length)});
    target = target.subspan(length);
  }
  return result;
}

expected<void> checkpoint::read_places(std::span<const chunk_place> places, unsigned threads) const {
  auto total = std::uint64_t{0};
  for (const auto& each : places)
    total += each.target.size();
  return for_each_index(places.size(), threads_for(threads, total), [&](std::size_t i) {
    return read_chunk(*places[i].tensor, places[i].chunk, places[i].target);
  });
}

expected<void> checkpoint::read_chunks(std::size_t index,
                                       const std::function<void(std::span<const std::byte>)>& consume) const {
  TROUPE_TRY(auto tensor, tensor_at(index));
  auto buffer = std::vector<std::byte>{};
  for (std::size_t i = 0; i < tensor->chunks.size(); ++i) {
    buffer.resize(tensor->chunks[i].length_bytes);
    TROUPE_TRY(read_chunk(*tensor, i, buffer));
    consume(buffer);
  }
  return {};
}

expected<void> checkpoint::read_chunk(const stored_tensor& tensor, std::size_t chunk,
                                      std::span<std::byte> target) const {
  const auto& place = tensor.chunks[chunk];
  TROUPE_TRY(auto source, open_part(directory_, content_.parts[place.part], *files_));
  auto checksum = xxh3_stream{};
  for (auto done = std::uint64_t{0}; done < target.size();) {
    auto piece = target.subspan(done, std::min<std::uint64_t>(read_piece_bytes, target.size() - done));
    TROUPE_TRY(source->read_at(place.offset_bytes + done, piece));
    checksum.update(piece);
    done += piece.size();
  }
  if (checksum.digest() != place.xxh3)
    return fail(chunk_damage(tensor, chunk, source->path()));
  return {};
}

expected<void> checkpoint::verify(read_back source, unsigned threads) const {
  return verify_with(source, threads, {});
}

expected<void> checkpoint::verify(read_back source, const std::stop_token& stop) const {
  return verify_with(source, 1, stop);
}

expected<void> checkpoint::verify_with(read_back source, unsigned threads, const std::stop_token& stop) const {
  auto total = std::uint64_t{0};
  for (const auto& part : content_.parts) {
    TROUPE_TRY(auto opened, open_part(directory_, part, *files_));
    if (source == read_back::from_device)
      opened->drop_cached();
    total += part.size_bytes;
  }
  const auto regions = regions_of(content_);
  const auto stretches = stretches_of(regions);
  return for_each_index(stretches.size(), threads_for(threads, total), [&](std::size_t i) -> expected<void> {
    if (stop.stop_requested())
      return fail(errc::aborted, fmt::format("verifying {} was given up", directory_.string()));
    TROUPE_TRY(auto opened, open_part(directory_, content_.parts[stretches[i].front().part], *files_));
    return verify_stretch(*opened, stretches[i]);
  });
}

expected<latest_checkpoint> open_latest(const fs::path& checkpoints_directory, file_system& files) {
  // Includes directories without a manifest, so that a lost manifest is reported.
  TROUPE_TRY(auto candidates, scan_steps(checkpoints_directory, files));
  if (candidates.empty())
    return fail(errc::not_found, fmt::format("there is no checkpoint in {}", checkpoints_directory.string()));
  auto passed_over = std::vector<unusable_checkpoint>{};
  std::ranges::reverse(candidates);
  for (const auto& candidate : candidates) {
    auto opened = open_verified(candidate.path, files);
    if (opened)
      return latest_checkpoint{std::move(*opened), std::move(passed_over)};
    passed_over.push_back({candidate.path, std::move(opened.error())});
  }
  auto texts = std::vector<std::string>{};
  for (const auto& each : passed_over)
    texts.push_back(each.text());
  return fail(errc::damaged,
              fmt::format("no checkpoint in {} is valid: {}", checkpoints_directory.string(), fmt::join(texts, "; ")));
}

} // namespace troupe::serialization

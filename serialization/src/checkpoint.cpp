#include <troupe/serialization/checkpoint.hpp>

#include <troupe/serialization/checkpoint_directory.hpp>
#include <troupe/serialization/digest.hpp>

#include "directory_scan.hpp"
#include "xxh3_stream.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t piece_bytes = 1 << 20;

/// A chunk, from the view of its part's file.
struct placed_chunk {
  const stored_tensor* tensor = nullptr;
  std::size_t index = 0;
  stored_chunk place;
};

std::vector<placed_chunk> chunks_of_part(const manifest& content, std::uint32_t part) {
  auto result = std::vector<placed_chunk>{};
  for (const auto& tensor : content.tensors)
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i)
      if (tensor.chunks[i].part == part)
        result.push_back({&tensor, i, tensor.chunks[i]});
  std::ranges::stable_sort(result, {}, [](const placed_chunk& x) { return x.place.offset_bytes; });
  return result;
}

error chunk_damage(const stored_tensor& tensor, std::size_t chunk, const fs::path& path) {
  const auto& place = tensor.chunks[chunk];
  return {errc::damaged, path.string() + " is damaged: tensor \"" + tensor.spec.name + "\", chunk " +
                             std::to_string(chunk) + ", the " + std::to_string(place.length_bytes) +
                             " bytes at offset " + std::to_string(place.offset_bytes) +
                             " do not have their checksum; use another checkpoint"};
}

/// What is missing in a directory that says it is whole is damage.
error missing_is_damage(error reason) {
  if (reason.code == errc::not_found)
    return {errc::damaged, "the checkpoint is damaged: " + reason.message + "; use another checkpoint"};
  return reason;
}

/// Opens a part and looks that it has its size.
expected<std::unique_ptr<file>> open_part(const fs::path& directory, const part_file& part, file_system& files) {
  auto result = files.open(directory / part.name);
  if (!result)
    return fail(missing_is_damage(std::move(result.error())));
  auto size = (*result)->size_bytes();
  if (!size)
    return fail(std::move(size.error()));
  if (*size != part.size_bytes)
    return fail(errc::damaged, (*result)->path().string() + " is damaged: it has " + std::to_string(*size) +
                                   " bytes of " + std::to_string(part.size_bytes) + "; use another checkpoint");
  return result;
}

/// Hands the bytes from `first` to `last` to `consume`, piece by piece, with their offset.
template <class Consume>
expected<void> read_pieces(const file& source, std::uint64_t first, std::uint64_t last, std::vector<std::byte>& buffer,
                           Consume consume) {
  for (auto done = first; done < last;) {
    auto piece = std::span{buffer}.first(std::min<std::uint64_t>(buffer.size(), last - done));
    if (auto read = source.read_at(done, piece); !read)
      return read;
    if (expected<void> good = consume(done, std::span<const std::byte>{piece}); !good)
      return good;
    done += piece.size();
  }
  return {};
}

expected<void> verify_padding(const file& source, std::uint64_t first, std::uint64_t last,
                              std::vector<std::byte>& buffer) {
  return read_pieces(source, first, last, buffer,
                     [&](std::uint64_t offset, std::span<const std::byte> bytes) -> expected<void> {
                       auto found = std::ranges::find_if(bytes, [](std::byte x) { return x != std::byte{}; });
                       if (found == bytes.end())
                         return {};
                       auto place = offset + static_cast<std::uint64_t>(found - bytes.begin());
                       return fail(errc::damaged, source.path().string() + " is damaged: the padding at offset " +
                                                      std::to_string(place) + " is not zero; use another checkpoint");
                     });
}

expected<void> verify_chunk(const file& source, const placed_chunk& chunk, std::vector<std::byte>& buffer) {
  auto checksum = xxh3_stream{};
  auto first = chunk.place.offset_bytes;
  auto read = read_pieces(source, first, first + chunk.place.length_bytes, buffer,
                          [&](std::uint64_t, std::span<const std::byte> bytes) -> expected<void> {
                            checksum.update(bytes);
                            return {};
                          });
  if (read && checksum.digest() != chunk.place.xxh3)
    return fail(chunk_damage(*chunk.tensor, chunk.index, source.path()));
  return read;
}

expected<checkpoint> open_verified(const fs::path& directory, file_system& files) {
  auto result = checkpoint::open(directory, files);
  if (!result)
    return result;
  if (auto good = result->verify(); !good)
    return fail(std::move(good.error()));
  return result;
}

std::string joined(const std::vector<std::string>& lines) {
  auto result = std::string{};
  for (const auto& line : lines)
    result += (result.empty() ? "" : "; ") + line;
  return result;
}

} // namespace

checkpoint::checkpoint(fs::path directory, manifest content, file_system& files)
    : directory_(std::move(directory)), content_(std::move(content)), files_(&files) {
  for (std::size_t i = 0; i < content_.tensors.size(); ++i)
    index_by_name_.emplace(content_.tensors[i].spec.name, i);
}

expected<checkpoint> checkpoint::open(const fs::path& directory, file_system& files, read_back source) {
  auto found = files.look_at(directory);
  if (!found)
    return fail(std::move(found.error()));
  if (*found != entry_kind::directory)
    return fail(errc::not_found, "there is no checkpoint at " + directory.string());
  auto content = read_manifest(directory / manifest_file_name, files, source);
  if (!content)
    return fail(missing_is_damage(std::move(content.error())));
  for (const auto& part : content->parts)
    if (auto opened = open_part(directory, part, files); !opened)
      return fail(std::move(opened.error()));
  return checkpoint{directory, std::move(*content), files};
}

std::optional<std::size_t> checkpoint::find(std::string_view name) const {
  auto found = index_by_name_.find(name);
  return found == index_by_name_.end() ? std::nullopt : std::optional{found->second};
}

expected<const stored_tensor*> checkpoint::tensor_at(std::size_t index) const {
  if (index < content_.tensors.size())
    return &content_.tensors[index];
  return fail(errc::not_found, directory_.string() + " holds " + std::to_string(content_.tensors.size()) +
                                   " tensors, none at index " + std::to_string(index));
}

expected<void> checkpoint::read_tensor(std::size_t index, std::span<std::byte> target) const {
  auto tensor = tensor_at(index);
  if (!tensor)
    return fail(std::move(tensor.error()));
  const auto& stored = **tensor;
  if (target.size() != stored.spec.size_bytes())
    return fail(errc::invalid_argument, "tensor \"" + stored.spec.name + "\" of " + directory_.string() + " has " +
                                            std::to_string(stored.spec.size_bytes()) + " bytes, the place for it " +
                                            std::to_string(target.size()));
  for (std::size_t i = 0; i < stored.chunks.size(); ++i) {
    auto length = stored.chunks[i].length_bytes;
    if (auto read = read_chunk(stored, i, target.first(length)); !read)
      return read;
    target = target.subspan(length);
  }
  return {};
}

expected<void> checkpoint::read_tensor(std::string_view name, std::span<std::byte> target) const {
  if (auto index = find(name))
    return read_tensor(*index, target);
  return fail(errc::not_found, directory_.string() + " holds no tensor \"" + std::string{name} + '"');
}

expected<void> checkpoint::read_chunks(std::size_t index,
                                       const std::function<void(std::span<const std::byte>)>& consume) const {
  auto tensor = tensor_at(index);
  if (!tensor)
    return fail(std::move(tensor.error()));
  auto buffer = std::vector<std::byte>{};
  for (std::size_t i = 0; i < (*tensor)->chunks.size(); ++i) {
    buffer.resize((*tensor)->chunks[i].length_bytes);
    if (auto read = read_chunk(**tensor, i, buffer); !read)
      return read;
    consume(buffer);
  }
  return {};
}

expected<void> checkpoint::read_chunk(const stored_tensor& tensor, std::size_t chunk,
                                      std::span<std::byte> target) const {
  const auto& place = tensor.chunks[chunk];
  auto source = open_part(directory_, content_.parts[place.part], *files_);
  if (!source)
    return fail(std::move(source.error()));
  if (auto read = (*source)->read_at(place.offset_bytes, target); !read)
    return read;
  if (xxh3(target) != place.xxh3)
    return fail(chunk_damage(tensor, chunk, (*source)->path()));
  return {};
}

expected<void> checkpoint::verify(read_back source) const {
  for (std::uint32_t part = 0; part < content_.parts.size(); ++part)
    if (auto good = verify_part(part, source); !good)
      return good;
  return {};
}

expected<void> checkpoint::verify_part(std::uint32_t part, read_back source) const {
  auto opened = open_part(directory_, content_.parts[part], *files_);
  if (!opened)
    return fail(std::move(opened.error()));
  if (source == read_back::from_device)
    (*opened)->drop_cached();
  auto buffer = std::vector<std::byte>(std::min(content_.parts[part].size_bytes, piece_bytes));
  auto covered = std::uint64_t{0};
  for (const auto& chunk : chunks_of_part(content_, part)) {
    if (auto good = verify_padding(**opened, covered, chunk.place.offset_bytes, buffer); !good)
      return good;
    if (auto good = verify_chunk(**opened, chunk, buffer); !good)
      return good;
    covered = std::max(covered, chunk.place.offset_bytes + chunk.place.length_bytes);
  }
  return verify_padding(**opened, covered, content_.parts[part].size_bytes, buffer);
}

expected<latest_checkpoint> open_latest(const fs::path& checkpoints_directory, file_system& files) {
  // Those without a manifest too, so that the loss of one is reported.
  auto candidates = scan_steps(checkpoints_directory, files);
  if (!candidates)
    return fail(std::move(candidates.error()));
  if (candidates->empty())
    return fail(errc::not_found, "there is no checkpoint in " + checkpoints_directory.string());
  auto passed_over = std::vector<std::string>{};
  std::ranges::reverse(*candidates);
  for (const auto& candidate : *candidates) {
    auto opened = open_verified(candidate.path, files);
    if (opened)
      return latest_checkpoint{std::move(*opened), std::move(passed_over)};
    passed_over.push_back(candidate.path.filename().string() + ": " + opened.error().message);
  }
  return fail(errc::damaged, "no checkpoint in " + checkpoints_directory.string() + " is good: " + joined(passed_over));
}

} // namespace troupe::serialization

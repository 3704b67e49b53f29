#include "checkpoint/manifest_flaw.hpp"

#include "vocabulary/checked_size.hpp"

#include <fmt/format.h>
#include <set>
#include <string_view>

namespace troupe::serialization {

namespace {

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name != manifest_file_name &&
         name.find_first_of(std::string_view{"/\0", 2}) == std::string_view::npos;
}

std::optional<std::string> find_chunk_flaw(const stored_chunk& chunk, const std::vector<part_file>& parts) {
  if (chunk.part >= parts.size())
    return fmt::format("is in part {} of {}", chunk.part, parts.size());
  if (chunk.length_bytes == 0 || chunk.length_bytes > max_chunk_bytes)
    return fmt::format("has {} bytes", chunk.length_bytes);
  if (chunk.offset_bytes % chunk_alignment_bytes != 0)
    return fmt::format("begins at {}, which is not a page boundary", chunk.offset_bytes);
  auto size = parts[chunk.part].size_bytes;
  if (chunk.offset_bytes > size || chunk.length_bytes > size - chunk.offset_bytes)
    return fmt::format("ends beyond {}", parts[chunk.part].name);
  return std::nullopt;
}

std::optional<std::string> find_tensor_flaw(const stored_tensor& tensor, const std::vector<part_file>& parts) {
  if (!is_dtype(static_cast<std::uint8_t>(tensor.spec.type)))
    return "has no known dtype";
  auto size = checked_size(tensor.spec.type, tensor.spec.shape);
  if (!size)
    return "has a size that does not fit into 64 bits";
  auto sum = std::uint64_t{0};
  for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
    if (auto flaw = find_chunk_flaw(tensor.chunks[i], parts))
      return fmt::format("chunk {} {}", i, *flaw);
    sum += tensor.chunks[i].length_bytes;
  }
  if (sum != *size)
    return fmt::format("has {} bytes of chunks and {} of shape", sum, *size);
  return std::nullopt;
}

} // namespace

std::optional<std::string> find_flaw(const manifest& content) {
  auto names = std::set<std::string_view>{};
  for (const auto& part : content.parts) {
    if (!is_plain_name(part.name))
      return fmt::format("\"{}\" is not a valid name for a part", part.name);
    if (!names.insert(part.name).second)
      return fmt::format("two parts are named {}", part.name);
  }
  names.clear();
  for (const auto& tensor : content.tensors) {
    if (!names.insert(tensor.spec.name).second)
      return fmt::format("two tensors are named \"{}\"", tensor.spec.name);
    if (auto flaw = find_tensor_flaw(tensor, content.parts))
      return fmt::format("tensor \"{}\" {}", tensor.spec.name, *flaw);
  }
  return std::nullopt;
}

} // namespace troupe::serialization

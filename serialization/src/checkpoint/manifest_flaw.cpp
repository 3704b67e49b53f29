#include "checkpoint/manifest_flaw.hpp"

#include <set>
#include <string_view>

namespace troupe::serialization {

namespace {

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name != manifest_file_name &&
         name.find_first_of(std::string_view{"/\0", 2}) == std::string_view::npos;
}

std::optional<std::uint64_t> checked_size(const tensor_spec& spec) {
  auto result = std::uint64_t{size_of(spec.type)};
  auto too_big = false;
  for (auto dimension : spec.shape) {
    // A zero anywhere makes the tensor empty, whatever the others are.
    if (dimension == 0)
      return 0;
    too_big = __builtin_mul_overflow(result, dimension, &result) || too_big;
  }
  return too_big ? std::nullopt : std::optional{result};
}

std::optional<std::string> find_chunk_flaw(const stored_chunk& chunk, const std::vector<part_file>& parts) {
  if (chunk.part >= parts.size())
    return "is in part " + std::to_string(chunk.part) + " of " + std::to_string(parts.size());
  if (chunk.length_bytes == 0 || chunk.length_bytes > max_chunk_bytes)
    return "has " + std::to_string(chunk.length_bytes) + " bytes";
  if (chunk.offset_bytes % chunk_alignment_bytes != 0)
    return "begins at " + std::to_string(chunk.offset_bytes) + ", which is no page";
  auto size = parts[chunk.part].size_bytes;
  if (chunk.offset_bytes > size || chunk.length_bytes > size - chunk.offset_bytes)
    return "ends beyond " + parts[chunk.part].name;
  return std::nullopt;
}

std::optional<std::string> find_tensor_flaw(const stored_tensor& tensor, const std::vector<part_file>& parts) {
  if (!is_dtype(static_cast<std::uint8_t>(tensor.spec.type)))
    return "has no known dtype";
  auto size = checked_size(tensor.spec);
  if (!size)
    return "is too big for its size to be a number";
  auto sum = std::uint64_t{0};
  for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
    if (auto flaw = find_chunk_flaw(tensor.chunks[i], parts))
      return "chunk " + std::to_string(i) + ' ' + *flaw;
    sum += tensor.chunks[i].length_bytes;
  }
  if (sum != *size)
    return "has " + std::to_string(sum) + " bytes of chunks and " + std::to_string(*size) + " of shape";
  return std::nullopt;
}

} // namespace

std::optional<std::string> find_flaw(const manifest& content) {
  auto names = std::set<std::string_view>{};
  for (const auto& part : content.parts) {
    if (!is_plain_name(part.name))
      return '"' + part.name + "\" is no name for a part";
    if (!names.insert(part.name).second)
      return "two parts are named " + part.name;
  }
  names.clear();
  for (const auto& tensor : content.tensors) {
    if (!names.insert(tensor.spec.name).second)
      return "two tensors are named \"" + tensor.spec.name + '"';
    if (auto flaw = find_tensor_flaw(tensor, content.parts))
      return "tensor \"" + tensor.spec.name + "\" " + *flaw;
  }
  return std::nullopt;
}

} // namespace troupe::serialization

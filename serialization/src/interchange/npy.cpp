#include <troupe/serialization/files/file_system.hpp>
#include <troupe/serialization/interchange/npy.hpp>

#include <troupe/serialization/files/digest.hpp>

#include "files/file_place.hpp"
#include "files/new_file.hpp"
#include "files/sized_file.hpp"
#include "vocabulary/booleans.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

void swap_bytes(std::span<std::byte> bytes, std::size_t element_bytes) {
  for (std::size_t i = 0; i < bytes.size(); i += element_bytes)
    std::ranges::reverse(bytes.subspan(i, element_bytes));
}

/// Converts Fortran order to C order.
std::vector<std::byte> transposed(std::span<const std::byte> bytes, const tensor_spec& spec) {
  auto size = size_of(spec.type);
  auto dimensions = spec.shape.size();
  auto strides = std::vector<std::uint64_t>(dimensions, size);
  for (std::size_t i = 1; i < dimensions; ++i)
    strides[i] = strides[i - 1] * spec.shape[i - 1];
  auto result = std::vector<std::byte>(bytes.size());
  auto index = std::vector<std::uint64_t>(dimensions);
  auto from = std::uint64_t{0};
  for (std::size_t to = 0; to < result.size(); to += size) {
    std::memcpy(result.data() + to, bytes.data() + from, size);
    // Advances the index in C order, and its place with it.
    for (auto i = dimensions; i-- > 0;) {
      from += strides[i];
      if (++index[i] < spec.shape[i])
        break;
      from -= strides[i] * spec.shape[i];
      index[i] = 0;
    }
  }
  return result;
}

} // namespace

expected<npy_array> read_npy(const fs::path& path) {
  TROUPE_TRY(auto opened, open_sized(path));
  const auto& [source, size] = opened;
  auto beginning = std::vector<std::byte>(std::min(size, 12 + max_npy_header_bytes));
  TROUPE_TRY(source->read_at(0, beginning));
  auto layout = parse_npy_header(beginning, size);
  if (!layout)
    return fail(of_file(path, std::move(layout.error())));
  auto result = npy_array{{"", layout->type, layout->shape}, {}};
  result.bytes.resize(result.spec.size_bytes());
  TROUPE_TRY(source->read_at(layout->offset_bytes, result.bytes));
  if (auto bad = find_invalid_boolean(layout->type, result.bytes))
    return fail(errc::damaged,
                fmt::format("{}: its elements are bool, and element {} is neither 0 nor 1", path.string(), *bad));
  if (layout->bytes == byte_order::big)
    swap_bytes(result.bytes, size_of(layout->type));
  if (layout->elements == element_order::fortran && layout->shape.size() > 1)
    result.bytes = transposed(result.bytes, result.spec);
  return result;
}

expected<void> write_npy(const fs::path& path, const tensor_spec& spec,
                         const std::function<expected<void>(const byte_sink&)>& source, existing_file existing) {
  auto head = make_npy_head(spec);
  if (!head)
    return fail(of_file(path, std::move(head.error())));
  TROUPE_TRY(auto target, new_file::create(path, head->size() + spec.size_bytes(), existing));
  TROUPE_TRY(target.append(bytes_of(*head)));
  TROUPE_TRY(append_tensor(target, spec, source));
  return target.commit();
}

expected<void> write_npy(const fs::path& path, const tensor_view& tensor, existing_file existing) {
  auto source = [&](const byte_sink& sink) -> expected<void> {
    sink({tensor.data, tensor.spec.size_bytes()});
    return {};
  };
  return write_npy(path, tensor.spec, source, existing);
}

} // namespace troupe::serialization

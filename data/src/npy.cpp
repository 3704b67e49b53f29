#include <troupe/data/npy.hpp>

#include "file_bytes.hpp"

#include <troupe/serialization/interchange/npy.hpp>

#include <bit>
#include <fmt/format.h>
#include <optional>
#include <utility>

namespace troupe::data {

namespace {

static_assert(std::endian::native == std::endian::little, "files are mapped as they are");

/// Nothing if the file's elements are not as this machine has them in memory, or if each has to be looked at.
std::optional<column> mapped(const file_bytes& content, const serialization::npy_layout& layout, std::string name) {
  const auto is_c_order = layout.elements == serialization::element_order::c || layout.shape.size() <= 1;
  const auto is_native = layout.bytes == serialization::byte_order::little || size_of(layout.type) == 1;
  if (!is_c_order || !is_native || layout.type == dtype::boolean || layout.shape.empty())
    return std::nullopt;
  auto spec = column_spec{std::move(name), layout.type, {layout.shape.begin() + 1, layout.shape.end()}, {}};
  return column{std::move(spec), content.bytes.subspan(layout.offset_bytes), content.owner};
}

} // namespace

expected<column> read_npy(const std::filesystem::path& path, std::string column_name) {
  {
    TROUPE_TRY(auto content, open_bytes(path));
    // What is wrong with a file, the reader says.
    if (const auto layout = serialization::parse_npy_header(content.bytes, content.bytes.size()))
      if (auto result = mapped(content, *layout, column_name))
        return std::move(*result);
  }
  TROUPE_TRY(auto array, serialization::read_npy(path));
  auto result = make_column(std::move(column_name), array.spec, std::move(array.bytes));
  if (!result)
    return fail(result.error().code, fmt::format("{}: {}", path.string(), result.error().message));
  return result;
}

} // namespace troupe::data

#include <troupe/data/raw.hpp>

#include "file_bytes.hpp"

#include <bit>
#include <fmt/format.h>
#include <utility>

namespace troupe::data {

static_assert(std::endian::native == std::endian::little, "files are mapped as they are");

expected<column> read_raw(const std::filesystem::path& path, std::string column_name, dtype type,
                          std::vector<std::uint64_t> shape) {
  auto spec = column_spec{std::move(column_name), type, std::move(shape), {}};
  if (type == dtype::boolean)
    return fail(errc::invalid_argument,
                fmt::format("{}: bool may have bytes that are neither 0 nor 1: read it as u8", path.string()));
  auto row_bytes = std::uint64_t{size_of(type)};
  for (const auto n : spec.shape)
    if (__builtin_mul_overflow(row_bytes, n, &row_bytes))
      row_bytes = 0;
  if (row_bytes == 0)
    return fail(errc::invalid_argument,
                fmt::format("{}: samples of {} have no bytes, or too many", path.string(), describe(spec)));
  TROUPE_TRY(auto content, open_bytes(path));
  if (content.bytes.empty() || content.bytes.size() % row_bytes != 0)
    return fail(errc::damaged, fmt::format("{}: it has {} bytes, expected a multiple of {}, the size of a sample of {}",
                                           path.string(), content.bytes.size(), row_bytes, describe(spec)));
  return column{std::move(spec), content.bytes, std::move(content.owner)};
}

} // namespace troupe::data

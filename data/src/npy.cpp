#include <troupe/data/npy.hpp>

#include <troupe/serialization/interchange/npy.hpp>

#include <fmt/format.h>
#include <utility>

namespace troupe::data {

expected<column> read_npy(const std::filesystem::path& path, std::string column_name) {
  TROUPE_TRY(auto array, serialization::read_npy(path));
  auto result = make_column(std::move(column_name), array.spec, std::move(array.bytes));
  if (!result)
    return fail(result.error().code, fmt::format("{}: {}", path.string(), result.error().message));
  return result;
}

} // namespace troupe::data

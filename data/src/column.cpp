#include <troupe/data/column.hpp>

namespace troupe::data {

bool column_spec::operator==(const column_spec& other) const {
  if (name != other.name || type != other.type || shape != other.shape)
    return false;
  if (categories == other.categories)
    return true;
  return categories && other.categories && *categories == *other.categories;
}

std::string describe(const column_spec& column) {
  auto result = std::string{to_string(column.type)};
  if (column.shape.empty())
    return result;
  result += "[";
  for (std::size_t i = 0; i < column.shape.size(); ++i)
    result += (i == 0 ? "" : ", ") + std::to_string(column.shape[i]);
  return result + "]";
}

} // namespace troupe::data

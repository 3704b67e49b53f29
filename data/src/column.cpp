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

expected<column> make_column(std::string name, const tensor_spec& tensor, std::vector<std::byte> bytes) {
  if (tensor.shape.empty())
    return fail(errc::invalid_argument, "column '" + name + "': a scalar has no samples");
  if (bytes.size() != tensor.size_bytes())
    return fail(errc::invalid_argument, "column '" + name + "': " + std::to_string(bytes.size()) +
                                            " bytes, and the shape asks for " + std::to_string(tensor.size_bytes()));
  auto spec = column_spec{std::move(name), tensor.type, {tensor.shape.begin() + 1, tensor.shape.end()}, {}};
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  return column{std::move(spec), *owner, owner};
}

} // namespace troupe::data

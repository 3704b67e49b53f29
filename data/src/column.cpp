#include <troupe/data/column.hpp>

#include <fmt/format.h>

namespace troupe::data {

bool column_spec::operator==(const column_spec& other) const {
  if (name != other.name || type != other.type || shape != other.shape)
    return false;
  if (categories == other.categories)
    return true;
  return categories && other.categories && *categories == *other.categories;
}

std::string describe(const column_spec& column) {
  if (column.shape.empty())
    return std::string{to_string(column.type)};
  return fmt::format("{}[{}]", to_string(column.type), fmt::join(column.shape, ", "));
}

expected<column> make_column(std::string name, const tensor_spec& tensor, std::vector<std::byte> bytes) {
  if (tensor.shape.empty())
    return fail(errc::invalid_argument, fmt::format("column '{}': a scalar has no samples", name));
  if (bytes.size() != tensor.size_bytes())
    return fail(errc::invalid_argument,
                fmt::format("column '{}': {} bytes, but its shape takes {}", name, bytes.size(), tensor.size_bytes()));
  auto spec = column_spec{std::move(name), tensor.type, {tensor.shape.begin() + 1, tensor.shape.end()}, {}};
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  return column{std::move(spec), *owner, owner};
}

} // namespace troupe::data

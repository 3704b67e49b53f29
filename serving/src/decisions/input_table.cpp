#include "decisions/input_table.hpp"

#include <utility>

namespace troupe::serving {

input_table::input_table(std::vector<data::column_spec> columns) : columns_(std::move(columns)) {
  categories_.resize(columns_.size());
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const auto& each = columns_[i];
    names_.emplace(each.name, i);
    row_bytes_ += each.size_bytes();
    row_elements_ += each.elements();
    if (each.categories != nullptr)
      for (std::size_t code = 0; code < each.categories->size(); ++code)
        categories_[i].emplace((*each.categories)[code], static_cast<std::int64_t>(code));
  }
}

std::optional<std::size_t> input_table::find(std::string_view name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? std::nullopt : std::optional{found->second};
}

std::int64_t input_table::category(std::size_t column, std::string_view text) const {
  const auto found = categories_[column].find(text);
  return found == categories_[column].end() ? -1 : found->second;
}

} // namespace troupe::serving

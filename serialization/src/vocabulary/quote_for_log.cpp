#include "vocabulary/quote_for_log.hpp"

#include <nlohmann/json.hpp>

namespace troupe::serialization {

std::string quote_for_log(std::string_view name) {
  constexpr std::size_t longest = 80;
  auto text = std::string{name.substr(0, longest)};
  if (name.size() > longest)
    text += "...";
  return nlohmann::json(std::move(text)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

} // namespace troupe::serialization

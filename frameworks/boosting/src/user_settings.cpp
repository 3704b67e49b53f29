#include <troupe/boosting.hpp>

namespace troupe::boosting {

const nlohmann::json& user_config(const train_context& ctx) {
  return ctx.config().at("config");
}

const nlohmann::json& user_options(const train_context& ctx) {
  return ctx.options().at("options");
}

} // namespace troupe::boosting

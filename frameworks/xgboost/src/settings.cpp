#include "settings.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace troupe::xgboost {

namespace {

/// UBJSON takes 35 bytes per node of a large tree (measured with 1.7.4), and 800 per tree.
constexpr double bytes_per_node = 64;
constexpr double bytes_per_tree = 4096;

expected<void> check_parameters(const nlohmann::json& parameters) {
  if (!parameters.is_object())
    return boosting::refuse("parameters is not an object: name XGBoost's parameters, as in {\"max_depth\": 4}");
  for (const auto* taken : {"seed", "random_state", "seed_per_iteration", "process_type"})
    if (parameters.contains(taken))
      return boosting::refuse(
          fmt::format("parameters: '{}' cannot be set: trees are added to the existing ones, and the "
                      "seed is the run's (run.seed)",
                      taken));
  if (auto booster = parameters.find("booster"); booster != parameters.end() && *booster == "gblinear")
    return boosting::refuse("parameters: the booster must be one of trees: 'gbtree' or 'dart'");
  return {};
}

} // namespace

std::string parameter_text(const nlohmann::json& value) {
  if (value.is_string())
    return value.get<std::string>();
  if (value.is_boolean())
    return value.get<bool>() ? "1" : "0";
  return value.dump();
}

std::optional<std::uint64_t> most_model_bytes(const nlohmann::json& parameters, std::uint64_t rounds) {
  auto trees = static_cast<double>(rounds) * std::max(1.0, boosting::number_of(parameters, {"num_class"}, 1)) *
               std::max(1.0, boosting::number_of(parameters, {"num_parallel_tree"}, 1));
  auto depth = boosting::number_of(parameters, {"max_depth"}, 6);
  auto leaves = boosting::number_of(parameters, {"max_leaves"}, 0);
  auto nodes = 0.0;
  if (leaves > 0)
    nodes = 2 * leaves - 1;
  if (depth > 0 && depth < 40)
    nodes = nodes > 0 ? std::min(nodes, std::exp2(depth + 1) - 1) : std::exp2(depth + 1) - 1;
  if (nodes == 0)
    return std::nullopt;
  return boosting::model_capacity(trees, bytes_per_tree + nodes * bytes_per_node);
}

expected<settings> settings_of(const training_config& config) {
  TROUPE_TRY(check_parameters(config.parameters));
  if (config.deadline < std::chrono::seconds{1})
    return boosting::refuse("deadline is shorter than a second");
  auto result = settings{boosting::shared_settings(config), config.deadline, config.trainer.cluster.trusted_network,
                         config.library.string()};
  auto most = most_model_bytes(config.parameters, config.rounds);
  TROUPE_TRY(boosting::complete(result, config.rounds, most, "max_depth and max_leaves"));
  return result;
}

boosting::own_settings own_settings_of(const settings& what) {
  return {.options = {{"deadline", what.deadline.count()},
                      {"trusted_network", what.trusted_network},
                      {"library", what.library}}};
}

expected<settings> read_settings(const nlohmann::json& config, const nlohmann::json& options) {
  settings result;
  auto read_own = [&result](const nlohmann::json&, const nlohmann::json& more) {
    result.deadline = std::chrono::seconds{more.at("deadline").get<std::int64_t>()};
    more.at("trusted_network").get_to(result.trusted_network);
    more.at("library").get_to(result.library);
  };
  TROUPE_TRY(boosting::read_settings(this_library, config, options, result, read_own));
  return result;
}

} // namespace troupe::xgboost

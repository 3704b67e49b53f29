#include "settings.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

namespace troupe::xgboost {

namespace {

/// UBJSON takes 35 bytes for each node of a large tree (measured with 1.7.4), and 800 for each tree.
constexpr double bytes_per_node = 64;
constexpr double bytes_per_tree = 4096;
constexpr double bytes_of_rest = 64 << 10;
constexpr std::uint64_t least_model_bytes = 4096;

/// A parameter that may be given as a number or as text.
std::optional<double> number_of(const nlohmann::json& parameters, const char* name) {
  auto found = parameters.find(name);
  if (found == parameters.end())
    return std::nullopt;
  if (found->is_number())
    return found->get<double>();
  try {
    return std::stod(parameter_text(*found));
  } catch (const std::exception&) {
    return std::nullopt;
  }
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
  auto trees = static_cast<double>(rounds) * std::max(1.0, number_of(parameters, "num_class").value_or(1)) *
               std::max(1.0, number_of(parameters, "num_parallel_tree").value_or(1));
  auto depth = number_of(parameters, "max_depth").value_or(6);
  auto leaves = number_of(parameters, "max_leaves").value_or(0);
  auto nodes = 0.0;
  if (leaves > 0)
    nodes = 2 * leaves - 1;
  if (depth > 0 && depth < 40)
    nodes = nodes > 0 ? std::min(nodes, std::exp2(depth + 1) - 1) : std::exp2(depth + 1) - 1;
  auto bytes = trees * (bytes_per_tree + nodes * bytes_per_node) + bytes_of_rest;
  if (nodes == 0 || bytes > std::exp2(32))
    return std::nullopt;
  return std::bit_ceil(static_cast<std::uint64_t>(bytes));
}

expected<settings> settings_of(const training_config& config) {
  auto invalid = [](const std::string& what) { return fail(errc::invalid_argument, "training_config." + what); };
  if (!config.parameters.is_object())
    return invalid("parameters is no object: name XGBoost's parameters, as in {\"max_depth\": 4}");
  for (const auto* taken : {"seed", "random_state", "seed_per_iteration", "process_type"})
    if (config.parameters.contains(taken))
      return invalid(std::string{"parameters: '"} + taken +
                     "' cannot be set: trees are added to those that there are, and the seed is the run's (run.seed)");
  if (config.parameters.value("booster", std::string{"gbtree"}) == "gblinear")
    return invalid("parameters: the booster is one of trees: 'gbtree' or 'dart'");
  if (config.features.empty())
    return invalid("features is empty: name the columns to learn from");
  if (config.label.empty())
    return invalid("label is empty: name the column to be learned");
  if (std::ranges::find(config.features, config.label) != config.features.end())
    return invalid("features has the label '" + config.label + "'");
  if (config.rounds == 0)
    return invalid("rounds is 0");
  if (config.deadline < std::chrono::seconds{1})
    return invalid("deadline is shorter than a second");
  settings result{config.parameters,  config.features,         config.label,   config.weight,
                  config.model_bytes, config.checkpoint_every, config.deadline};
  if (result.model_bytes == 0) {
    auto most = most_model_bytes(config.parameters, config.rounds);
    if (!most)
      return invalid("model_bytes has to be set: with these max_depth and max_leaves a model has no useful limit");
    result.model_bytes = *most;
  }
  result.model_bytes = std::max(result.model_bytes, least_model_bytes);
  return result;
}

nlohmann::json config_of(const settings& what, const nlohmann::json& user) {
  return {{"xgboost",
           {{"parameters", what.parameters},
            {"features", what.features},
            {"label", what.label},
            {"weight", what.weight},
            {"checkpoint_every", what.checkpoint_every}}},
          {"config", user}};
}

nlohmann::json options_of(const settings& what, const nlohmann::json& user) {
  return {{"xgboost", {{"model_bytes", what.model_bytes}, {"deadline", what.deadline.count()}}}, {"options", user}};
}

expected<settings> read_settings(const nlohmann::json& config, const nlohmann::json& options) {
  try {
    const auto& decides = config.at("xgboost");
    const auto& more = options.at("xgboost");
    settings result;
    result.parameters = decides.at("parameters");
    decides.at("features").get_to(result.features);
    decides.at("label").get_to(result.label);
    decides.at("weight").get_to(result.weight);
    more.at("model_bytes").get_to(result.model_bytes);
    decides.at("checkpoint_every").get_to(result.checkpoint_every);
    result.deadline = std::chrono::seconds{more.at("deadline").get<std::int64_t>()};
    (void)config.at("config");
    (void)options.at("options");
    return result;
  } catch (const nlohmann::json::exception&) {
    return fail(errc::invalid_argument, "a function of xgboost::training_function was started by another trainer than "
                                        "one of xgboost::make_trainer");
  }
}

} // namespace troupe::xgboost

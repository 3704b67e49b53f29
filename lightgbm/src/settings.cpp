#include "settings.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

namespace troupe::lightgbm {

namespace {

/// LightGBM's text takes some 200 bytes for a leaf and the node above it, and 400 for a tree (measured with 4.7).
constexpr double bytes_per_leaf = 320;
constexpr double bytes_per_tree = 2048;
constexpr double bytes_of_rest = 64 << 10;
constexpr std::uint64_t least_model_bytes = 4096;

std::string value_text(const nlohmann::json& value) {
  if (value.is_string())
    return value.get<std::string>();
  if (value.is_boolean())
    return value.get<bool>() ? "true" : "false";
  if (!value.is_array())
    return value.dump();
  std::string result;
  for (const auto& each : value)
    result += (result.empty() ? "" : ",") + value_text(each);
  return result;
}

/// The number that one of several names of a parameter has, as a number or as text.
double number_of(const nlohmann::json& parameters, std::initializer_list<const char*> names, double otherwise) {
  for (const auto* name : names)
    if (auto found = parameters.find(name); found != parameters.end())
      try {
        return found->is_number() ? found->get<double>() : std::stod(value_text(*found));
      } catch (const std::exception&) {
        return otherwise;
      }
  return otherwise;
}

/// Parameters that Troupe sets, or that mean something else in a run; and why.
constexpr std::array refused_parameters{
    std::pair{"seed", "the seed is the run's (run.seed)"},
    std::pair{"random_seed", "the seed is the run's (run.seed)"},
    std::pair{"random_state", "the seed is the run's (run.seed)"},
    std::pair{"num_machines", "the run knows its workers (scaling.num_workers)"},
    std::pair{"num_machine", "the run knows its workers (scaling.num_workers)"},
    std::pair{"machines", "workers find each other by themselves"},
    std::pair{"machine_list_filename", "workers find each other by themselves"},
    std::pair{"num_iterations", "say rounds instead"},
    std::pair{"num_rounds", "say rounds instead"},
    std::pair{"early_stopping_round", "all rounds are done"},
    std::pair{"linear_tree", "its leaves need the rows as they were"},
};

/// Names that stand for `boosting` and `tree_learner`.
std::string word_of(const nlohmann::json& parameters, std::initializer_list<const char*> names,
                    const std::string& otherwise) {
  for (const auto* name : names)
    if (auto found = parameters.find(name); found != parameters.end())
      return value_text(*found);
  return otherwise;
}

} // namespace

std::string parameter_text(const nlohmann::json& parameters, std::uint32_t workers, std::uint64_t seed) {
  auto all = nlohmann::json{{"num_threads", 1}, {"force_col_wise", true}, {"deterministic", true}, {"verbosity", -1}};
  if (parameters.value("force_row_wise", false))
    all.erase("force_col_wise");
  if (workers > 1)
    all["tree_learner"] = "data";
  all.update(parameters);
  all["num_machines"] = workers;
  all["seed"] = seed & 0x7fffffff;
  // One worker alone has LightGBM's own, serial learner.
  if (workers == 1)
    all.erase("tree_learner");
  std::string result;
  for (const auto& [name, value] : all.items())
    result += (result.empty() ? "" : " ") + name + "=" + value_text(value);
  return result;
}

std::optional<std::uint64_t> most_model_bytes(const nlohmann::json& parameters, std::uint64_t rounds) {
  auto trees = static_cast<double>(rounds) * std::max(1.0, number_of(parameters, {"num_class", "num_classes"}, 1));
  auto leaves = std::max(2.0, number_of(parameters, {"num_leaves", "num_leaf", "max_leaves", "max_leaf"}, 31));
  auto bytes = trees * (bytes_per_tree + leaves * bytes_per_leaf) + bytes_of_rest;
  if (!(bytes <= std::exp2(32)))
    return std::nullopt;
  return std::bit_ceil(static_cast<std::uint64_t>(bytes));
}

expected<settings> settings_of(const training_config& config) {
  auto invalid = [](const std::string& what) { return fail(errc::invalid_argument, "training_config." + what); };
  if (!config.parameters.is_object())
    return invalid("parameters is no object: name LightGBM's parameters, as in {\"num_leaves\": 31}");
  for (const auto& [name, why] : refused_parameters)
    if (config.parameters.contains(name))
      return invalid(std::string{"parameters: '"} + name + "' cannot be set: " + why);
  for (const auto& [name, value] : config.parameters.items())
    if (name.find_first_of(" \t\n=") != std::string::npos ||
        value_text(value).find_first_of(" \t\n=") != std::string::npos)
      return invalid("parameters: '" + name + "': neither name nor value may have a blank or '=' in it");
  auto boosting = word_of(config.parameters, {"boosting", "boosting_type", "boost"}, "gbdt");
  if (boosting != "gbdt" && boosting != "gbrt" && boosting != "goss")
    return invalid("parameters: boosting '" + boosting +
                   "' cannot go on from a checkpoint: take 'gbdt', with data_sample_strategy 'goss' if wanted");
  auto learner = word_of(config.parameters, {"tree_learner", "tree", "tree_type", "tree_learner_type"}, "data");
  if (learner != "data" && learner != "voting")
    return invalid("parameters: tree_learner '" + learner +
                   "': rows are dealt to the workers, 'data' and 'voting' "
                   "learn from that");
  if (config.features.empty())
    return invalid("features is empty: name the columns to learn from");
  if (config.label.empty())
    return invalid("label is empty: name the column to be learned");
  if (std::ranges::find(config.features, config.label) != config.features.end())
    return invalid("features has the label '" + config.label + "'");
  if (config.rounds == 0)
    return invalid("rounds is 0");
  if (config.bin_rows == 0)
    return invalid("bin_rows is 0: bins are found in rows");
  settings result{config.parameters,       config.features, config.label,       config.weight,
                  config.checkpoint_every, config.bin_rows, config.model_bytes, config.library.string()};
  if (result.model_bytes == 0) {
    auto most = most_model_bytes(config.parameters, config.rounds);
    if (!most)
      return invalid("model_bytes has to be set: with these rounds and num_leaves a model has no useful limit");
    result.model_bytes = *most;
  }
  result.model_bytes = std::max(result.model_bytes, least_model_bytes);
  return result;
}

nlohmann::json config_of(const settings& what, const nlohmann::json& user) {
  return {{"lightgbm",
           {{"parameters", what.parameters},
            {"features", what.features},
            {"label", what.label},
            {"weight", what.weight},
            {"checkpoint_every", what.checkpoint_every},
            {"bin_rows", what.bin_rows}}},
          {"config", user}};
}

nlohmann::json options_of(const settings& what, const nlohmann::json& user) {
  return {{"lightgbm", {{"model_bytes", what.model_bytes}, {"library", what.library}}}, {"options", user}};
}

expected<settings> read_settings(const nlohmann::json& config, const nlohmann::json& options) {
  try {
    const auto& decides = config.at("lightgbm");
    const auto& more = options.at("lightgbm");
    settings result;
    result.parameters = decides.at("parameters");
    decides.at("features").get_to(result.features);
    decides.at("label").get_to(result.label);
    decides.at("weight").get_to(result.weight);
    decides.at("checkpoint_every").get_to(result.checkpoint_every);
    decides.at("bin_rows").get_to(result.bin_rows);
    more.at("model_bytes").get_to(result.model_bytes);
    more.at("library").get_to(result.library);
    (void)config.at("config");
    (void)options.at("options");
    return result;
  } catch (const nlohmann::json::exception&) {
    return fail(errc::invalid_argument, "a function of lightgbm::training_function was started by another trainer "
                                        "than one of lightgbm::make_trainer");
  }
}

} // namespace troupe::lightgbm

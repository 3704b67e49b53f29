#include "settings.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <utility>

namespace troupe::lightgbm {

namespace {

/// LightGBM's text takes about 200 bytes for a leaf and its parent node, and 400 for a tree (measured with 4.7).
constexpr double bytes_per_leaf = 320;
constexpr double bytes_per_tree = 2048;

std::string value_text(const nlohmann::json& value) {
  if (value.is_string())
    return value.get<std::string>();
  if (value.is_boolean())
    return value.get<bool>() ? "true" : "false";
  if (!value.is_array())
    return value.dump();
  std::vector<std::string> texts;
  for (const auto& each : value)
    texts.push_back(value_text(each));
  return fmt::format("{}", fmt::join(texts, ","));
}

/// Parameters that Troupe sets itself, or that have another meaning in a run, with the reason.
constexpr std::array refused_parameters{
    std::pair{"seed", "the seed is the run's (run.seed)"},
    std::pair{"random_seed", "the seed is the run's (run.seed)"},
    std::pair{"random_state", "the seed is the run's (run.seed)"},
    std::pair{"num_machines", "the number of workers is the run's (scaling.num_workers)"},
    std::pair{"num_machine", "the number of workers is the run's (scaling.num_workers)"},
    std::pair{"machines", "Troupe connects the workers"},
    std::pair{"machine_list_filename", "Troupe connects the workers"},
    std::pair{"num_iterations", "set rounds instead"},
    std::pair{"num_rounds", "set rounds instead"},
    std::pair{"early_stopping_round", "all rounds are computed"},
    std::pair{"linear_tree", "its leaves need the original rows"},
};

/// The value of a parameter with several names, as text.
std::string word_of(const nlohmann::json& parameters, std::initializer_list<const char*> names,
                    const std::string& otherwise) {
  for (const auto* name : names)
    if (auto found = parameters.find(name); found != parameters.end())
      return value_text(*found);
  return otherwise;
}

expected<void> check_parameters(const nlohmann::json& parameters) {
  if (!parameters.is_object())
    return boosting::refuse("parameters is not an object: name LightGBM's parameters, as in {\"num_leaves\": 31}");
  for (const auto& [name, why] : refused_parameters)
    if (parameters.contains(name))
      return boosting::refuse(fmt::format("parameters: '{}' cannot be set: {}", name, why));
  for (const auto& [name, value] : parameters.items())
    if (name.find_first_of(" \t\n=") != std::string::npos ||
        value_text(value).find_first_of(" \t\n=") != std::string::npos)
      return boosting::refuse(fmt::format("parameters: '{}': neither name nor value may contain a blank or '='", name));
  auto boosting = word_of(parameters, {"boosting", "boosting_type", "boost"}, "gbdt");
  if (boosting != "gbdt" && boosting != "gbrt" && boosting != "goss")
    return boosting::refuse(fmt::format("parameters: boosting '{}' cannot resume from a checkpoint: use 'gbdt', with "
                                        "data_sample_strategy 'goss' if needed",
                                        boosting));
  auto learner = word_of(parameters, {"tree_learner", "tree", "tree_type", "tree_learner_type"}, "data");
  if (learner != "data" && learner != "voting")
    return boosting::refuse(fmt::format("parameters: tree_learner '{}': rows are distributed over the workers, which "
                                        "only 'data' and 'voting' support",
                                        learner));
  return {};
}

} // namespace

std::string parameter_text(const nlohmann::json& parameters, std::uint32_t workers, std::uint64_t seed) {
  auto all = nlohmann::json{{"num_threads", 1}, {"force_col_wise", true}, {"deterministic", true}, {"verbosity", -1}};
  auto by_rows = word_of(parameters, {"force_row_wise"}, "false");
  if (by_rows == "true" || by_rows == "1")
    all.erase("force_col_wise");
  if (workers > 1)
    all["tree_learner"] = "data";
  all.update(parameters);
  all["num_machines"] = workers;
  all["seed"] = seed & 0x7fffffff;
  // A single worker uses LightGBM's own serial learner.
  if (workers == 1)
    all.erase("tree_learner");
  std::vector<std::string> texts;
  for (const auto& [name, value] : all.items())
    texts.push_back(fmt::format("{}={}", name, value_text(value)));
  return fmt::format("{}", fmt::join(texts, " "));
}

std::optional<std::uint64_t> most_model_bytes(const nlohmann::json& parameters, std::uint64_t rounds) {
  auto trees =
      static_cast<double>(rounds) * std::max(1.0, boosting::number_of(parameters, {"num_class", "num_classes"}, 1));
  auto leaves =
      std::max(2.0, boosting::number_of(parameters, {"num_leaves", "num_leaf", "max_leaves", "max_leaf"}, 31));
  return boosting::model_capacity(trees, bytes_per_tree + leaves * bytes_per_leaf);
}

expected<settings> settings_of(const training_config& config) {
  TROUPE_TRY(check_parameters(config.parameters));
  if (config.bin_rows == 0)
    return boosting::refuse("bin_rows is 0: give the number of rows in which bins are found");
  auto result = settings{boosting::shared_settings(config), config.bin_rows, config.library.string()};
  auto most = most_model_bytes(config.parameters, config.rounds);
  TROUPE_TRY(boosting::complete(result, config.rounds, most, "rounds and num_leaves"));
  return result;
}

boosting::own_settings own_settings_of(const settings& what) {
  return {{{"bin_rows", what.bin_rows}}, {{"library", what.library}}};
}

expected<settings> read_settings(const nlohmann::json& config, const nlohmann::json& options) {
  settings result;
  auto read_own = [&result](const nlohmann::json& decides, const nlohmann::json& more) {
    decides.at("bin_rows").get_to(result.bin_rows);
    more.at("library").get_to(result.library);
  };
  TROUPE_TRY(boosting::read_settings(this_library, config, options, result, read_own));
  return result;
}

} // namespace troupe::lightgbm

#include <troupe/boosting/settings.hpp>

#include <troupe/inference/model_storage.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <fmt/format.h>
#include <utility>

namespace troupe::boosting {

namespace {

/// The size of a model without its trees: names, objective, parameters.
constexpr double bytes_of_rest = 64 << 10;
constexpr std::uint64_t least_model_bytes = 4096;

} // namespace

expected<void> complete(settings& what, std::uint64_t rounds, std::optional<std::uint64_t> most, const char* limits) {
  if (what.features.empty())
    return refuse("features is empty: name the columns to learn from");
  if (what.label.empty())
    return refuse("label is empty: name the column to predict");
  if (std::ranges::find(what.features, what.label) != what.features.end())
    return refuse(fmt::format("features contains the label '{}'", what.label));
  if (rounds == 0)
    return refuse("rounds is 0");
  if (what.model_bytes == 0) {
    if (!most)
      return refuse(fmt::format("model_bytes must be set: with these {} a model has no useful limit", limits));
    what.model_bytes = *most;
  }
  what.model_bytes = std::max(what.model_bytes, least_model_bytes);
  return {};
}

double number_of(const nlohmann::json& parameters, std::initializer_list<const char*> names, double otherwise) {
  for (const auto* name : names)
    if (auto found = parameters.find(name); found != parameters.end())
      try {
        return found->is_string() ? std::stod(found->get<std::string>()) : found->get<double>();
      } catch (const std::exception&) {
        return otherwise;
      }
  return otherwise;
}

std::optional<std::uint64_t> model_capacity(double trees, double bytes_per_tree) {
  auto bytes = trees * bytes_per_tree + bytes_of_rest;
  if (!(bytes <= std::exp2(32)))
    return std::nullopt;
  return std::bit_ceil(static_cast<std::uint64_t>(bytes));
}

nlohmann::json config_of(const tree_library& library, const settings& what, const own_settings& own,
                         const nlohmann::json& user) {
  auto all = nlohmann::json{{"parameters", what.parameters},
                            {"features", what.features},
                            {"label", what.label},
                            {"weight", what.weight},
                            {"checkpoint_every", what.checkpoint_every}};
  all.update(own.config);
  return {{library.key, std::move(all)}, {"config", user}};
}

nlohmann::json options_of(const tree_library& library, const settings& what, const own_settings& own,
                          const nlohmann::json& user) {
  auto all = nlohmann::json{{"model_bytes", what.model_bytes}};
  all.update(own.options);
  return {{library.key, std::move(all)}, {"options", user}};
}

expected<void>
read_settings(const tree_library& library, const nlohmann::json& config, const nlohmann::json& options,
              settings& result,
              const std::function<void(const nlohmann::json& config, const nlohmann::json& options)>& read_own) {
  try {
    const auto& decides = config.at(library.key);
    const auto& more = options.at(library.key);
    result.parameters = decides.at("parameters");
    decides.at("features").get_to(result.features);
    decides.at("label").get_to(result.label);
    decides.at("weight").get_to(result.weight);
    decides.at("checkpoint_every").get_to(result.checkpoint_every);
    more.at("model_bytes").get_to(result.model_bytes);
    read_own(decides, more);
    (void)config.at("config");
    (void)options.at("options");
    return {};
  } catch (const nlohmann::json::exception&) {
    return fail(errc::invalid_argument,
                fmt::format("a function of {0}::training_function was started by a trainer that {0}::make_trainer did "
                            "not make",
                            library.key));
  }
}

trainer make_trainer(const app& program, const function& train, const tree_library& library, settings how,
                     const own_settings& own, std::uint64_t rounds, trainer_config all) {
  how.model_bytes = inference::latest_capacity(all.run, library.model_tensor()).value_or(how.model_bytes);
  all.run.steps = rounds;
  all.config = config_of(library, how, own, all.config);
  all.options = options_of(library, how, own, all.options);
  return trainer{program, train, std::move(all)};
}

} // namespace troupe::boosting

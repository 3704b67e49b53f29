// Trains boosted trees on a CSV table with XGBoost or LightGBM and reports their error on the held-out tenth of the
// rows. Without a table it generates one: rents of flats. `predict` accepts its checkpoints.
#include "library.hpp"

#include <command_line.hpp>
#include <dashboard_option.hpp>

#include <troupe/data/csv.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/troupe.hpp>

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace {

using namespace troupe;

/// Every worker reads the whole table; its library gets a part.
boosting::training_sets read_table(const train_context& ctx) {
  const auto& config = boosting::user_config(ctx);
  auto how = data::csv_options{};
  for (const auto& name : config.at("features"))
    how.columns.push_back({name, data::csv_type::f32, {}, {}});
  how.columns.push_back({config.at("label"), data::csv_type::f32, {}, {}});
  how.missing = data::missing_values::marked;
  auto file = boosting::user_options(ctx).at("file").get<std::string>();
  auto table = value_or_throw(data::make_table(value_or_throw(data::read_csv(file, how))));
  auto [training, validation] = value_or_throw(data::split(table, 0.1));
  return {training, {{"validation", validation}}};
}

const std::vector<std::string> flat_columns{"area", "rooms", "floor", "year", "distance"};

/// Writes 2,000 flats; for some the year is missing.
void write_flats(const std::filesystem::path& path) {
  auto random = random_stream{1, "flats"};
  auto out = std::ofstream{path};
  for (const auto& name : flat_columns)
    out << name << ',';
  out << "rent\n";
  for (int i = 0; i < 2000; ++i) {
    auto area = std::round(20 + 100 * random.uniform());
    auto rooms = std::max(1.0, std::round(area / 28 + 0.5 * random.normal()));
    auto floor = std::floor(8 * random.uniform());
    auto year = std::floor(1900 + 125 * random.uniform());
    auto distance = std::round(100 * random.uniform()) / 10;
    auto rent = 9 * area + 40 * rooms + 12 * floor + (year > 1995 ? 150 : 0) + 300 * std::exp(-distance / 3) +
                30 * random.normal();
    out << area << ',' << rooms << ',' << floor << ',' << (i % 9 == 0 ? "" : std::to_string(static_cast<int>(year)))
        << ',' << distance << ',' << std::round(rent) << '\n';
  }
  out.close();
  if (!out)
    throw exception{errc::io_error, fmt::format("cannot write the table {}", path.string())};
}

struct options {
  std::string library = "xgboost";
  std::string file;
  std::vector<std::string> parameters;
  std::string export_to;
  trees::request asked{.features = flat_columns, .label = "rent"};
};

void add_parameters(options& o) {
  for (const auto& each : o.parameters) {
    auto mark = each.find('=');
    if (mark == std::string::npos)
      throw exception{errc::invalid_argument, fmt::format("--parameter {}: expected NAME=VALUE", each)};
    o.asked.parameters[each.substr(0, mark)] = each.substr(mark + 1);
  }
}

/// Describes a contradiction between options. Checked before the run, which would otherwise fail only at its end.
std::optional<std::string> contradiction(const options& o) {
  auto end = std::filesystem::path{o.export_to}.extension();
  auto is_xgboosts = end == ".ubj" || end == ".json";
  if (o.library == "lightgbm") {
    if (is_xgboosts)
      return fmt::format("--export {}: {} is XGBoost's format; LightGBM's models are text: use another name, such as "
                         "model.txt",
                         o.export_to, end.string());
    return std::nullopt;
  }
  if (!o.asked.lightgbm_library.empty())
    return "--lightgbm-library requires --library lightgbm: add that, or omit it";
  if (!o.export_to.empty() && !is_xgboosts)
    return fmt::format("--export {}: XGBoost's models are .ubj or .json: use a name with that ending", o.export_to);
  return std::nullopt;
}

void print(const run_result& result) {
  auto text = fmt::format("round {}", result.steps);
  auto separator = ": ";
  for (const auto& [name, value] : result.metrics) {
    text += fmt::format("{}{} {:.4f}", separator, name, value);
    separator = ", ";
  }
  std::printf("%s\ncheckpoint %s\n", text.c_str(), result.latest_checkpoint.c_str());
}

int run(const app& program, const trees::library& library, options& o) {
  auto& config = o.asked.trainer;
  add_parameters(o);
  if (!o.asked.lightgbm_library.empty())
    o.asked.lightgbm_library = std::filesystem::absolute(o.asked.lightgbm_library);
  auto makes_up = o.file.empty();
  if (makes_up)
    o.file = (config.run.storage_path / ((config.run.name.empty() ? "trees" : config.run.name) + ".csv")).string();
  config.config = {{"features", o.asked.features}, {"label", o.asked.label}};
  config.options = {{"file", std::filesystem::absolute(o.file).string()}};
  auto trainer = library.make_trainer(program, library.train, o.asked);
  if (makes_up) {
    std::filesystem::create_directories(config.run.storage_path);
    write_flats(o.file);
  }
  auto result = trainer.fit_or_throw();
  print(result);
  if (!o.export_to.empty())
    value_or_throw(
        library.export_model(value_or_throw(serialization::checkpoint::open(result.latest_checkpoint)), o.export_to));
  return trainer.exit_code();
}

} // namespace

int main(int argc, char** argv) {
  auto xgboost = trees::xgboost_library(read_table);
  auto lightgbm = trees::lightgbm_library(read_table);
  auto program = app{argc, argv, {xgboost.train, lightgbm.train}};
  options o;
  auto& config = o.asked.trainer;
  auto workers = std::uint32_t{2};
  std::string storage = "runs";
  CLI::App cli{"Trains boosted trees on a CSV table with a header.", "trees"};
  cli.add_option("--library", o.library, "Library that trains the trees")
      ->check(CLI::IsMember({"xgboost", "lightgbm"}))
      ->capture_default_str();
  cli.add_option(
      "--lightgbm-library", o.asked.lightgbm_library,
      "Path of lib_lightgbm.so on each host (default: $TROUPE_LIGHTGBM, else that of a Python package in the usual "
      "places)");
  cli.add_option("--file", o.file, "The table (default: a generated one)");
  cli.add_option("--features", o.asked.features, "Numeric input columns")->delimiter(',')->capture_default_str();
  cli.add_option("--label", o.asked.label, "Numeric column to learn")->capture_default_str();
  cli.add_option("--rounds", o.asked.rounds, "Rounds of boosting")->capture_default_str();
  cli.add_option("--parameter", o.parameters, "A parameter of the library, as NAME=VALUE; may be repeated");
  cli.add_option("--checkpoint-every", o.asked.checkpoint_every, "Rounds between checkpoints")->capture_default_str();
  cli.add_option("--export", o.export_to,
                 "Write the model as the library's own file: .ubj or .json for XGBoost, text for LightGBM");
  cli.add_option("--workers", workers, "Worker processes")->capture_default_str();
  apps::add_nodes(cli, config.cluster);
  apps::add_leases(cli, config.scaling);
  cli.add_option("--storage", storage, "Directory that contains the run's directory")->capture_default_str();
  apps::add_name(cli, config.run.name);
  apps::add_monitoring(cli, config.monitoring);
  apps::add_resume(cli, config.run);
  apps::add_mirror(cli, config.checkpoint.mirror);
  apps::add_time_limit(cli, config.run);
  auto dashboard = apps::dashboard_option{cli};
  if (auto code = apps::parse_command_line(cli, argc, argv))
    return *code;
  if (auto code = dashboard.open(storage))
    return *code;
  config.scaling.num_workers = workers;
  config.run.storage_path = storage;
  if (auto wrong = contradiction(o)) {
    std::fprintf(stderr, "trees: %s; see trees --help\n", wrong->c_str());
    return apps::exit_usage;
  }
  try {
    return run(program, o.library == "xgboost" ? xgboost : lightgbm, o);
  } catch (const std::exception& x) {
    std::fprintf(stderr, "trees: %s\n", x.what());
    return 1;
  }
}

// Trains boosted trees on a CSV table by XGBoost, over as many processes as you like, and tells how well they do on the
// tenth part that was held out. Without a table it makes one up: rents of flats. `predict` takes the checkpoint.
#include <command_line.hpp>

#include <troupe/data/csv.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/troupe.hpp>
#include <troupe/xgboost.hpp>

#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace {

using namespace troupe;

/// Every worker reads the table, and gives XGBoost its own part of it.
xgboost::training_sets read_table(const train_context& ctx) {
  const auto& config = xgboost::user_config(ctx);
  auto how = data::csv_options{};
  for (const auto& name : config.at("features"))
    how.columns.push_back({name, data::csv_type::f32, {}, {}});
  how.columns.push_back({config.at("label"), data::csv_type::f32, {}, {}});
  how.missing = data::missing_values::marked;
  auto file = xgboost::user_options(ctx).at("file").get<std::string>();
  auto table = value_or_throw(data::make_table(value_or_throw(data::read_csv(file, how))));
  auto [training, validation] = value_or_throw(data::split(table, 0.1));
  return {training, {{"validation", validation}}};
}

const std::vector<std::string> flat_columns{"area", "rooms", "floor", "year", "distance"};

/// 2,000 flats; of some the year is not known.
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
    throw failure{errc::io_error, path.string() + ": the table cannot be written"};
}

struct options {
  std::string file;
  std::string label = "rent";
  std::vector<std::string> features = flat_columns;
  std::vector<std::string> parameters;
  std::string export_to;
  xgboost::training_config training;
};

void add_parameters(options& o) {
  for (const auto& each : o.parameters) {
    auto mark = each.find('=');
    if (mark == std::string::npos)
      throw failure{errc::invalid_argument, "--parameter " + each + ": write NAME=VALUE"};
    o.training.parameters[each.substr(0, mark)] = each.substr(mark + 1);
  }
}

void print(const run_result& result) {
  std::string text = "round " + std::to_string(result.steps);
  auto separator = ": ";
  for (const auto& [name, value] : result.metrics) {
    char number[64];
    std::snprintf(number, sizeof number, "%s%s %.4f", separator, name.c_str(), value);
    text += number;
    separator = ", ";
  }
  std::printf("%s\ncheckpoint %s\n", text.c_str(), result.latest_checkpoint.c_str());
}

int run(const app& program, options& o) {
  auto& config = o.training.trainer;
  if (o.file.empty()) {
    o.file = (config.run.storage_path / (config.run.name + ".csv")).string();
    std::filesystem::create_directories(config.run.storage_path);
    write_flats(o.file);
  }
  add_parameters(o);
  o.training.features = o.features;
  o.training.label = o.label;
  config.config = {{"features", o.features}, {"label", o.label}};
  config.options = {{"file", std::filesystem::absolute(o.file).string()}};
  auto trainer = xgboost::make_trainer(program, "train", o.training);
  auto result = trainer.fit();
  if (result.status == run_status::failed) {
    std::fprintf(stderr, "trees: %s\n", result.reason.message.c_str());
    return trainer.exit_code();
  }
  print(result);
  if (!o.export_to.empty())
    value_or_throw(
        xgboost::export_model(value_or_throw(serialization::checkpoint::open(result.latest_checkpoint)), o.export_to));
  return trainer.exit_code();
}

} // namespace

int main(int argc, char** argv) {
  auto program = app{argc, argv, {xgboost::training_function("train", read_table)}};
  options o;
  o.training.rounds = 30;
  auto& config = o.training.trainer;
  config.run.name = "trees";
  auto workers = std::uint32_t{2};
  std::string storage = "runs";
  CLI::App cli{"Trains boosted trees on a CSV table with a header.", "trees"};
  cli.add_option("--file", o.file, "The table; one is made up without");
  cli.add_option("--features", o.features, "The columns of numbers to learn from")
      ->delimiter(',')
      ->capture_default_str();
  cli.add_option("--label", o.label, "The column of numbers to be learned")->capture_default_str();
  cli.add_option("--rounds", o.training.rounds, "Rounds of boosting")->capture_default_str();
  cli.add_option("--parameter", o.parameters, "A parameter of XGBoost's, as NAME=VALUE; several may be given");
  cli.add_option("--checkpoint-every", o.training.checkpoint_every, "Rounds between checkpoints")
      ->capture_default_str();
  cli.add_option("--export", o.export_to, "Writes the model as XGBoost's own file, .ubj or .json");
  cli.add_option("--workers", workers, "Worker processes")->capture_default_str();
  cli.add_option("--nodes", config.cluster.nodes, "HOST:PORT of each caf-node; this machine without")->delimiter(',');
  cli.add_flag("--trusted-network", config.cluster.trusted_network, "Off loopback: the network is private");
  cli.add_option("--storage", storage, "Where the run's directory is made")->capture_default_str();
  cli.add_option("--name", config.run.name, "Name of the run's directory")->capture_default_str();
  if (auto code = apps::parse_command_line(cli, argc, argv))
    return *code;
  config.scaling.num_workers = workers;
  config.run.storage_path = storage;
  try {
    return run(program, o);
  } catch (const std::exception& x) {
    std::fprintf(stderr, "trees: %s\n", x.what());
    return 1;
  }
}

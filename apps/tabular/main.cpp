// Trains a softmax regression, or a network, on a CSV table and reports its accuracy on the held-out tenth of the rows.
// Without a table it generates one: flowers of three species.
#include <command_line.hpp>
#include <dashboard_option.hpp>

#include <troupe/data/csv.hpp>
#include <troupe/data/dense_model.hpp>
#include <troupe/data/loader.hpp>
#include <troupe/data/preprocessor.hpp>
#include <troupe/troupe.hpp>

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

using namespace troupe;

struct tables {
  data::data_set_ptr training;
  data::data_set_ptr held_out;
};

tables read_tables(const train_context& ctx) {
  const auto& given = ctx.options();
  auto how = data::csv_options{};
  how.delimiter = given.at("delimiter").get<std::string>().front();
  how.header = given.at("header");
  how.skip_lines = given.at("skip_lines");
  how.columns = {{"inputs", data::csv_type::f32, ctx.config().at("inputs"), {}},
                 {"label", data::csv_type::categorical, {ctx.config().at("label")}, {}}};
  auto read = [&](const char* option) {
    return value_or_throw(data::make_table(value_or_throw(data::read_csv(given.at(option).get<std::string>(), how))));
  };
  auto table = read("file");
  if (!given.contains("validation")) {
    auto [training, held_out] = value_or_throw(data::split(table, 0.1));
    return {training, held_out};
  }
  // Labels are numbered as in the training file.
  how.columns.back().categories = *table->columns().back().categories;
  return {table, read("validation")};
}

void train_on_table(train_context& ctx) {
  auto [training, held_out] = read_tables(ctx);

  // Every rank computes the same scaling, and the checkpoint contains it.
  auto scaler = data::standard_scaler({"inputs"});
  auto reduction = data::context_reduction{ctx};
  scaler->fit(*training, reduction);
  scaler->track(ctx.state(), "inputs");
  training = value_or_throw(data::transformed(training, scaler));
  held_out = value_or_throw(data::transformed(held_out, scaler));

  const auto& config = ctx.config();
  auto model = data::dense_model{
      *training, ctx.seed(), {.hidden = config.at("hidden"), .learning_rate = config.at("learning_rate")}};
  model.track(ctx.state());

  auto batches = data::loader{ctx, training, {.batch_samples = config.at("batch")}};
  ctx.for_each_step(batches.plan(model.gradient_elements()), [&](step& step) {
    for (auto& shard : step.shards())
      model.add_gradient(batches(step, shard), shard);
    model.apply(step.all_reduce(), step.number());
    metric_map metrics{{"loss", step.mean_loss()}};
    if (step.last() || step.number() % 100 == 0)
      metrics.merge(model.evaluate(ctx, *held_out, "held_out_"));
    step.report(std::move(metrics));
  });
}

const std::vector<std::string> flower_columns{"sepal_length", "sepal_width", "petal_length", "petal_width"};

/// Writes 600 flowers whose sizes vary around those of their species.
void write_flowers(const std::filesystem::path& path) {
  struct species {
    const char* name;
    double sizes[4];
  };
  static constexpr species kinds[] = {
      {"low", {5.0, 3.4, 1.5, 0.3}}, {"middle", {5.9, 2.8, 4.3, 1.3}}, {"high", {6.6, 3.0, 5.6, 2.0}}};
  auto random = random_stream{1, "flowers"};
  auto out = std::ofstream{path};
  for (const auto& name : flower_columns)
    out << name << ',';
  out << "species\n";
  for (int i = 0; i < 600; ++i) {
    const auto& kind = kinds[i % 3];
    for (auto size : kind.sizes)
      out << std::round(100 * (size + 0.3 * random.normal())) / 100 << ',';
    out << kind.name << '\n';
  }
  out.close();
  if (!out)
    throw exception{errc::io_error, fmt::format("cannot write the table {}", path.string())};
}

/// Expands ranges of column numbers: "0-3" means "0,1,2,3".
std::vector<std::string> with_ranges(const std::vector<std::string>& columns) {
  std::vector<std::string> result;
  for (const auto& text : columns) {
    unsigned first = 0;
    unsigned last = 0;
    auto end = 0;
    if (std::sscanf(text.c_str(), "%5u-%5u%n", &first, &last, &end) == 2 &&
        static_cast<std::size_t>(end) == text.size() && first <= last)
      for (; first <= last; ++first)
        result.push_back(std::to_string(first));
    else
      result.push_back(text);
  }
  return result;
}

struct options {
  std::string file;
  std::string validation;
  std::string delimiter = ",";
  std::uint64_t skip_lines = 0;
  bool no_header = false;
  std::vector<std::string> inputs = flower_columns;
  std::string label = "species";
  std::vector<std::uint64_t> hidden;
  double learning_rate = 0.05;
  std::uint64_t batch = 64;
  trainer_config trainer;
};

int run(const app& program, const function& train, options& o) {
  if (o.file.empty()) {
    const auto& name = o.trainer.run.name;
    o.file = (o.trainer.run.storage_path / ((name.empty() ? "tabular" : name) + ".csv")).string();
    std::filesystem::create_directories(o.trainer.run.storage_path);
    write_flowers(o.file);
  }
  o.trainer.config = {{"inputs", o.no_header ? with_ranges(o.inputs) : o.inputs},
                      {"label", o.label},
                      {"batch", o.batch},
                      {"hidden", o.hidden},
                      {"learning_rate", o.learning_rate}};
  o.trainer.options = {{"file", std::filesystem::absolute(o.file).string()},
                       {"delimiter", o.delimiter == "tab" ? "\t" : o.delimiter},
                       {"header", !o.no_header},
                       {"skip_lines", o.skip_lines}};
  if (!o.validation.empty())
    o.trainer.options["validation"] = std::filesystem::absolute(o.validation).string();
  auto trainer = troupe::trainer{program, train, o.trainer};
  auto result = trainer.fit_or_throw();
  std::printf("held-out accuracy %s, training loss %s after step %llu\nstate %s\n",
              apps::metric_text(result.metrics, "held_out_accuracy", 3).c_str(),
              apps::metric_text(result.metrics, "loss", 3).c_str(), static_cast<unsigned long long>(result.steps),
              result.state_sha256.c_str());
  return trainer.exit_code();
}

} // namespace

int main(int argc, char** argv) {
  auto train = troupe::function{"train", train_on_table};
  auto program = troupe::app{argc, argv, {train}};
  options o;
  o.trainer.scaling.num_workers = 2;
  o.trainer.run.storage_path = "runs";
  o.trainer.run.steps = 300;
  auto workers = std::uint32_t{2};
  std::string storage = "runs";
  CLI::App cli{"Trains a softmax regression, or a network, on a CSV table.", "tabular"};
  auto* file = cli.add_option("--file", o.file, "The table (default: a generated one)");
  cli.add_option("--validation", o.validation,
                 "A table of the same form to evaluate on (default: a held-out tenth of the rows)")
      ->needs(file);
  cli.add_option("--delimiter", o.delimiter, "Separator of fields: a character, or the word tab")
      ->check([](const std::string& text) {
        return text.size() == 1 || text == "tab" ? std::string{}
                                                 : fmt::format("expected a character or the word tab, not '{}'", text);
      })
      ->capture_default_str();
  cli.add_option("--skip-lines", o.skip_lines, "Number of lines to skip before the table")->capture_default_str();
  cli.add_flag("--no-header", o.no_header,
               "The first row is data; columns are numbered from 0, and ranges such as 0-3 are allowed");
  cli.add_option("--inputs", o.inputs, "Numeric input columns")->delimiter(',')->capture_default_str();
  cli.add_option("--label", o.label, "Column of the class to learn")->capture_default_str();
  cli.add_option("--hidden", o.hidden, "Sizes of hidden layers, such as 32,16 (default: none, a softmax regression)")
      ->delimiter(',')
      ->check(apps::positive_number());
  cli.add_option("--learning-rate", o.learning_rate, "Learning rate of Adam")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  cli.add_option("--batch", o.batch, "Samples in each step's batch")->capture_default_str();
  cli.add_option("--workers", workers, "Worker processes")->capture_default_str();
  apps::add_verify_determinism(cli, o.trainer.run.verify_determinism);
  cli.add_option("--steps", o.trainer.run.steps, "The last step")->capture_default_str();
  cli.add_option("--storage", storage, "Directory that contains the run's directory")->capture_default_str();
  apps::add_name(cli, o.trainer.run.name);
  apps::add_monitoring(cli, o.trainer.monitoring);
  apps::add_resume(cli, o.trainer.run);
  apps::add_mirror(cli, o.trainer.checkpoint.mirror);
  apps::add_time_limit(cli, o.trainer.run);
  auto dashboard = apps::dashboard_option{cli};
  if (auto code = apps::parse_command_line(cli, argc, argv))
    return *code;
  if (auto code = dashboard.open(storage))
    return *code;
  o.trainer.scaling.num_workers = workers;
  o.trainer.run.storage_path = storage;
  try {
    return run(program, train, o);
  } catch (const std::exception& x) {
    std::fprintf(stderr, "tabular: %s\n", x.what());
    return 1;
  }
}

#include <troupe/data/csv.hpp>
#include <troupe/data/evaluation.hpp>
#include <troupe/data/loader.hpp>
#include <troupe/data/preprocessor.hpp>
#include <troupe/troupe.hpp>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

/// Trains a logistic regression on a table like a user's program: reads a CSV file, splits it, fits preprocessors over
/// all workers, prefetches batches, evaluates. Rank 1 of the first generation kills itself at the point named by KILL.
namespace {

using namespace troupe;

void end_at(train_context& ctx, const char* place) {
  if (ctx.options().at("kill") == place && ctx.rank() == 1 && ctx.generation() == 1)
    std::raise(SIGKILL);
}

double probability(std::span<const float> row, std::span<const float> weights) {
  auto z = weights.back();
  for (std::size_t i = 0; i < row.size(); ++i)
    z += row[i] * weights[i];
  return 1 / (1 + std::exp(-static_cast<double>(z)));
}

/// Calls `f(row, label)` for each sample.
template <class F>
void for_each_row(const data::batch& samples, F f) {
  auto inputs = samples.values<float>("inputs");
  auto labels = samples.values<std::int64_t>("label");
  auto width = inputs.size() / std::max<std::size_t>(labels.size(), 1);
  for (std::size_t i = 0; i < labels.size(); ++i)
    f(inputs.subspan(i * width, width), labels[i]);
}

/// Log loss and accuracy.
std::pair<double, double> quality(train_context& ctx, const data::data_set& set, std::span<const float> weights) {
  auto sums = data::evaluate(
      ctx, set, 2,
      [&](const data::batch& samples, std::span<double> out) {
        for_each_row(samples, [&](auto row, std::int64_t label) {
          auto p = probability(row, weights);
          out[0] -= std::log(label == 1 ? p : 1 - p);
          out[1] += (p > 0.5) == (label == 1) ? 1 : 0;
        });
      },
      32);
  auto n = static_cast<double>(set.size());
  return {sums[0] / n, sums[1] / n};
}

void train(train_context& ctx) {
  auto options = data::csv_options{};
  options.columns = {{"sizes", data::csv_type::f32, {"width", "height"}, {}},
                     {"age", data::csv_type::f64, {}, {}},
                     {"kind", data::csv_type::categorical, {}, {}},
                     {"label", data::csv_type::i64, {}, {}}};
  options.missing = data::missing_values::marked;
  options.missing_texts = {"", "NA"};
  auto table = value_or_throw(
      data::make_table(value_or_throw(data::read_csv(ctx.options().at("file").get<std::string>(), options))));
  auto [training, validation] = value_or_throw(data::split(table, 0.2, data::split_by::permutation, ctx.seed()));

  auto inputs =
      data::chain({data::mean_imputer({"age"}), data::standard_scaler({"age"}), data::min_max_scaler({"sizes"}),
                   data::one_hot_encoder({"kind"}, data::unknown_category::own_category),
                   data::column_join({"sizes", "age", "kind"}, "inputs")});
  end_at(ctx, "fit");
  auto reduction = data::context_reduction{ctx};
  inputs->fit(*training, reduction);
  inputs->track(ctx.state(), "inputs");
  training = value_or_throw(data::transformed(training, inputs));
  validation = value_or_throw(data::transformed(validation, inputs));

  auto width = training->columns().back().elements();
  std::vector<float> weights(width + 1);
  ctx.state().track("weights", weights);

  auto end = ctx.config().at("epoch_end").get<std::string>();
  auto batches = data::loader{ctx,
                              training,
                              {.batch_samples = 48,
                               .at_epoch_end = end == "run_on" ? data::epoch_end::run_on
                                               : end == "drop" ? data::epoch_end::drop
                                                               : data::epoch_end::repeat}};
  ctx.for_each_step(batches.plan(weights.size()), [&](step& step) {
    for (auto& shard : step.shards()) {
      auto gradient = shard.gradient();
      for_each_row(batches(step, shard), [&](auto row, std::int64_t label) {
        auto p = probability(row, weights);
        auto error = static_cast<float>(p - static_cast<double>(label));
        for (std::size_t i = 0; i < row.size(); ++i)
          gradient[i] += error * row[i];
        gradient.back() += error;
        shard.add("loss", -std::log(label == 1 ? p : 1 - p));
      });
      if (step.number() == 5)
        end_at(ctx, "step");
    }
    auto gradient = step.all_reduce();
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] -= 0.5f * gradient[i];
    metric_map metrics{{"loss", step.mean_loss()}};
    if (step.number() == 9)
      end_at(ctx, "evaluation");
    if (step.number() % 10 == 9 || step.last()) {
      auto [loss, accuracy] = quality(ctx, *validation, weights);
      metrics["validation_loss"] = loss;
      metrics["validation_accuracy"] = accuracy;
    }
    step.report(std::move(metrics));
  });
}

} // namespace

// data_tabular_run FILE WORKERS STORAGE NAME EPOCH_END KILL STEPS
int main(int argc, char** argv) {
  auto train = troupe::function{"train", ::train};
  auto app = troupe::app{argc, argv, {train}};
  if (argc != 8)
    return 2;
  troupe::trainer_config config;
  config.config = {{"epoch_end", argv[5]}};
  config.options = {{"file", argv[1]}, {"kill", argv[6]}};
  config.scaling.num_workers = static_cast<std::uint32_t>(std::atoi(argv[2]));
  config.run.storage_path = argv[3];
  config.run.name = argv[4];
  config.run.steps = static_cast<std::uint64_t>(std::atoi(argv[7]));
  try {
    auto trainer = troupe::trainer{app, train, std::move(config)};
    trainer.fit_or_throw();
    return trainer.exit_code();
  } catch (const std::exception& x) {
    std::fprintf(stderr, "data_tabular_run: %s\n", x.what());
    return 1;
  }
}

// Learns one column of a CSV file from the others: the columns are inferred, and the model is a small network.
//   learn_table FILE COLUMN [WORKERS]
#include <troupe/data/dense_model.hpp>
#include <troupe/data/labelled_table.hpp>
#include <troupe/data/loader.hpp>
#include <troupe/troupe.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

void learn(troupe::train_context& ctx) { // runs in every worker process
  auto options = troupe::data::table_options{.label = ctx.config().at("label"), .heartbeat = [&] { ctx.heartbeat(); }};
  auto table = value_or_throw(troupe::data::read_table(ctx.options().at("file").get<std::string>(), options));
  auto [training, validation] = troupe::data::prepare(ctx, table, 0.2);
  auto model = troupe::data::dense_model{*training, ctx.seed(), {.hidden = {16}}};
  model.track(ctx.state());
  auto batches = troupe::data::loader{ctx, training, {.batch_samples = 32}};
  ctx.for_each_step(batches.plan(model.gradient_elements()), [&](troupe::step& step) {
    for (auto& shard : step.shards())
      model.add_gradient(batches(step, shard), shard);
    model.apply(step.all_reduce(), step.number());
    auto metrics = step.last() ? model.evaluate(ctx, *validation) : troupe::metric_map{};
    metrics["loss"] = step.mean_loss();
    step.report(metrics);
  });
}

int main(int argc, char** argv) {
  auto train = troupe::function{"train", learn};
  auto app = troupe::app{argc, argv, {train}}; // first: a worker process ends in here
  if (argc < 3) {
    std::fprintf(stderr, "usage: learn_table FILE COLUMN [WORKERS]\n");
    return 2;
  }
  auto workers = argc > 3 ? static_cast<std::uint32_t>(std::atoi(argv[3])) : 2;
  auto trainer = troupe::trainer{app,
                                 train,
                                 {.scaling = {.num_workers = workers},
                                  .run = {.steps = 500},
                                  .config = {{"label", argv[2]}},
                                  .options = {{"file", std::filesystem::absolute(argv[1]).string()}}}};
  auto result = trainer.fit();
  if (result.status == troupe::run_status::failed)
    std::fprintf(stderr, "learn_table: %s\n", result.reason.message.c_str());
  for (const auto& [name, value] : result.metrics)
    std::printf("%s %.3f\n", name.c_str(), value);
  std::printf("state %s\n", result.state_sha256.c_str());
  return trainer.exit_code();
}

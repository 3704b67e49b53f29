#include <troupe/data/csv.hpp>
#include <troupe/data/exact_reduction.hpp>
#include <troupe/data/preprocessor.hpp>
#include <troupe/inference/batch_predictor.hpp>
#include <troupe/troupe.hpp>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

/// Trains a small model on a scaled table, and predicts with it, like a user's program with its own predictor. Rank 1
/// of the first generation, or every rank of the first start, kills itself at the point named by KILL.
namespace {

using namespace troupe;

/// Rows of two numbers that identify the row.
data::data_set_ptr make_rows(std::uint64_t count, std::uint32_t first) {
  std::vector<float> x(2 * count);
  for (std::uint64_t i = 0; i < count; ++i) {
    x[2 * i] = static_cast<float>((first + i) % 4099);
    x[2 * i + 1] = static_cast<float>((first + i) * 37 % 8191) / 64;
  }
  return value_or_throw(data::make_table({data::make_column("x", std::move(x), {2})}));
}

void train(train_context& ctx) {
  auto rows = make_rows(1000, 5);
  auto scaler = data::standard_scaler({"x"});
  auto reduction = data::context_reduction{ctx};
  scaler->fit(*rows, reduction);
  scaler->track(ctx.state(), "inputs");
  std::vector<float> weights(3);
  ctx.state().track("weights", weights);
  ctx.for_each_step({.data = *rows, .batch_samples = 50, .gradient_elements = 3}, [&](step& step) {
    for (auto& shard : step.shards())
      for (auto i : shard.samples()) {
        shard.gradient()[0] += static_cast<float>(i % 7);
        shard.gradient()[1] -= static_cast<float>(i % 5);
        shard.gradient()[2] += 1;
      }
    auto gradient = step.all_reduce();
    for (std::size_t i = 0; i < 3; ++i)
      weights[i] += gradient[i];
  });
}

/// Predicts a number and its square root for each row; NaN for a negative number.
class own_predictor final : public inference::predictor {
 public:
  own_predictor(std::vector<float> weights, std::string kill, std::string library)
      : weights_(std::move(weights)), kill_(std::move(kill)), library_(std::move(library)) {}

  std::string library() const override { return library_; }

  const std::vector<std::string>& outputs() const noexcept override { return outputs_; }

  expected<void> predict(data::batch& rows, std::span<float> out) override {
    end_if_told();
    auto x = rows.values<float>("x");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      out[2 * i] = weights_[0] * x[2 * i] + weights_[1] * x[2 * i + 1] + weights_[2];
      out[2 * i + 1] = std::sqrt(out[2 * i]);
    }
    return {};
  }

 private:
  void end_if_told() {
    if (++calls_ == 9 && kill_ != "nobody")
      std::raise(SIGKILL);
  }

  std::vector<std::string> outputs_{"value", "its \"root\", if any"};
  std::vector<float> weights_;
  std::string kill_;
  std::string library_;
  int calls_ = 0;
};

inference::prediction_job make_job(const inference::prediction_request& request) {
  std::vector<float> weights(3);
  value_or_throw(request.model.read_tensor("weights", std::as_writable_bytes(std::span{weights})));
  auto kill = request.options.at("kill").get<std::string>();
  const auto* given = std::getenv("RANK");
  const auto rank = std::string{given == nullptr ? "" : given};
  // As where hosts have different versions.
  const auto library = kill == "versions" ? "arithmetic 1." + rank : std::string{};
  if ((kill == "one" && rank != "1") || kill == "versions")
    kill = "nobody";
  if (kill != "nobody") {
    // Only once: the replacement continues.
    auto* file = std::fopen((request.options.at("mark").get<std::string>() + "-" + rank).c_str(), "wx");
    if (file == nullptr)
      kill = "nobody";
    else
      std::fclose(file);
  }
  return {make_rows(request.config.at("rows"), 0), std::make_unique<own_predictor>(std::move(weights), kill, library)};
}

int predict(const app& program, const function& predict_rows, inference::batch_prediction_config config) {
  auto predictor = inference::batch_predictor{program, predict_rows, std::move(config)};
  std::uint64_t last = 0;
  predictor.set_progress([&last](std::uint64_t done, std::uint64_t all) {
    if (done < last || done > all)
      std::printf("progress goes back, or beyond the end\n");
    last = done;
  });
  auto result = predictor.run();
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    return 1;
  }
  std::printf("%llu rows, %llu told\n", static_cast<unsigned long long>(result->rows),
              static_cast<unsigned long long>(last));
  return predictor.exit_code();
}

} // namespace

// inference_run train STORAGE NAME STEPS | predict STORAGE NAME CHECKPOINT OUTPUT ROWS WORKERS NODES KILL
int main(int argc, char** argv) {
  auto train = function{"train", ::train};
  auto predict_rows = inference::prediction_function("predict", make_job);
  auto program = app{argc, argv, {train, predict_rows}};
  auto config = trainer_config{};
  if (argc < 5)
    return 2;
  config.run.storage_path = argv[2];
  config.run.name = argv[3];
  try {
    if (std::string{argv[1]} == "train") {
      config.run.steps = std::strtoull(argv[4], nullptr, 10);
      auto trainer = troupe::trainer{program, train, config};
      auto result = trainer.fit();
      std::printf("%s\n", result.latest_checkpoint.c_str());
      return trainer.exit_code();
    }
    if (argc != 10)
      return 2;
    config.config = {{"rows", std::atoi(argv[6])}};
    config.options = {{"kill", argv[9]}, {"mark", std::string{argv[2]} + "/" + argv[3] + ".killed"}};
    config.scaling.num_workers = static_cast<std::uint32_t>(std::atoi(argv[7]));
    config.scaling.placement = placement_strategy::spread;
    config.checkpoint.every_steps = 4;
    auto nodes = std::istringstream{argv[8]};
    for (std::string node; std::getline(nodes, node, ',');)
      config.cluster.nodes.push_back(node);
    return predict(program, predict_rows,
                   {.checkpoint = argv[4],
                    .preprocessor = "inputs",
                    .output = argv[5],
                    .block_rows = 4096,
                    .trainer = std::move(config)});
  } catch (const std::exception& x) {
    std::fprintf(stderr, "%s\n", x.what());
    return 1;
  }
}

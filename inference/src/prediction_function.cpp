#include "block_range.hpp"
#include "prediction_file.hpp"
#include "prediction_settings.hpp"

#include <troupe/inference/batch_predictor.hpp>
#include <troupe/serialization/files/digest.hpp>
#include <troupe/train_context.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

namespace troupe::inference {

namespace {

/// Opens the model and checks that it equals the driver's.
serialization::checkpoint open_model(const prediction_settings& settings) {
  auto model = value_or_throw(serialization::checkpoint::open(settings.checkpoint));
  auto digest = value_or_throw(serialization::state_sha256(model));
  if (digest != settings.model_sha256)
    throw exception{errc::mismatch,
                    fmt::format("{} holds another state here ({}) than at the driver ({}): copy the same "
                                "checkpoint to all hosts",
                                settings.checkpoint, digest.substr(0, 16), settings.model_sha256.substr(0, 16))};
  return model;
}

class block_predictions {
 public:
  block_predictions(train_context& ctx, prediction_settings settings, prediction_job job)
      : ctx_(ctx),
        settings_(std::move(settings)),
        job_(std::move(job)),
        outputs_(job_.model->outputs().size()),
        all_(job_.rows->size() * outputs_) {
    ctx_.state().values()[outputs_value] = job_.model->outputs();
    ctx_.state().track(predictions_tensor, all_, {job_.rows->size(), outputs_});
  }

  void run() {
    auto rows = job_.rows->size();
    step_plan plan;
    plan.data = *job_.rows;
    if (const auto library = job_.model->library(); !library.empty())
      plan.data.fingerprint += ", predicted by " + library;
    // Each number comes from one shard, and the others add zero. With a batch of one sample the mean divides by one.
    plan.batch_samples = 1;
    plan.steps = block_count(rows, settings_.block_rows);
    plan.gradient_elements = std::min(settings_.block_rows, rows) * outputs_;
    plan.metrics = {"rows"};
    ctx_.for_each_step(plan, [this](step& step) { predict_block(step); });
  }

 private:
  void predict_block(step& step) {
    auto block = rows_of_block(job_.rows->size(), settings_.block_rows, step.number() - 1);
    for (auto& shard : step.shards()) {
      auto mine = rows_of_shard(block, ctx_.shards(), shard.id().value);
      if (mine.size() == 0)
        continue;
      numbers_.resize(mine.size());
      std::iota(numbers_.begin(), numbers_.end(), mine.first);
      value_or_throw(job_.rows->fetch(numbers_, samples_));
      auto out = shard.gradient().subspan((mine.first - block.first) * outputs_, mine.size() * outputs_);
      value_or_throw(job_.model->predict(samples_, out));
      shard.add("rows", static_cast<double>(mine.size()));
    }
    auto found = step.all_reduce();
    if (step.mean("rows") != static_cast<double>(block.size()))
      throw exception{errc::internal, fmt::format("block {} has predictions for {} of its {} rows: report a bug",
                                                  step.number(), step.mean("rows"), block.size())};
    std::ranges::copy(found.first(block.size() * outputs_),
                      all_.begin() + static_cast<std::ptrdiff_t>(block.first * outputs_));
    step.report({{"rows", static_cast<double>(block.last)}, {"rows_of_all", static_cast<double>(job_.rows->size())}});
  }

  train_context& ctx_;
  prediction_settings settings_;
  prediction_job job_;
  std::uint64_t outputs_;
  /// The predictions so far; 0 for the remaining rows.
  std::vector<float> all_;
  std::vector<std::uint64_t> numbers_;
  data::batch samples_;
};

void predict(train_context& ctx, const std::function<prediction_job(const prediction_request&)>& make) {
  auto settings = value_or_throw(read_settings(ctx.config(), ctx.options()));
  auto model = open_model(settings);
  auto job = make({model, settings.user_config, settings.user_options});
  if (job.rows == nullptr || job.model == nullptr || job.model->outputs().empty())
    throw exception{errc::user_error, "the prediction job needs rows, and a predictor with at least one output"};
  if (!settings.preprocessor.empty())
    job.model =
        preprocessed(value_or_throw(data::load_preprocessor(model, settings.preprocessor)), std::move(job.model));
  block_predictions{ctx, std::move(settings), std::move(job)}.run();
}

} // namespace

function prediction_function(std::string name, std::function<prediction_job(const prediction_request&)> make) {
  auto body = [make = std::move(make)](train_context& ctx) { predict(ctx, make); };
  return function{std::move(name), std::function<void(train_context&)>{std::move(body)}};
}

} // namespace troupe::inference

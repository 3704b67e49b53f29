#include "booster.hpp"
#include "exchange.hpp"
#include "settings.hpp"

#include <troupe/boosting/rounds.hpp>
#include <troupe/boosting/tables.hpp>
#include <troupe/serialization/files/file_digest.hpp>
#include <troupe/train_context.hpp>

#include <algorithm>
#include <optional>
#include <utility>

namespace troupe::lightgbm {

namespace {

/// A training or evaluation set, as numbers and as LightGBM's bins.
struct prepared_set {
  boosting::feature_table table;
  binned_set binned;
};

class trees final : public boosting::learner {
 public:
  trees(train_context& ctx, library_ptr functions, const settings& how, boosting::rounds& rounds)
      : ctx_(ctx), how_(how), library_(std::move(functions)) {
    prepare(rounds);
    exchange_.emplace(ctx_, library_);
  }

  /// LightGBM cannot boost a loaded model further, so a new booster starts from its scores.
  void begin(std::uint64_t rounds, std::span<const std::byte> model) override {
    model_.reset();
    kept_.reset();
    if (rounds > 0) {
      kept_.emplace(library_, std::string{reinterpret_cast<const char*>(model.data()), model.size()});
      for (auto& each : prepared_)
        start_from(*kept_, each);
    }
    auto all = parameters(ctx_.world_size(), rounds);
    model_.emplace(library_, prepared_.front().binned, all, [this](int result) { exchange_->check(result); });
    for (std::size_t i = 1; i < prepared_.size(); ++i)
      model_->add_evaluation(prepared_[i].binned);
  }

  void update(std::uint64_t) override { model_->update(); }

  metric_map evaluate(std::uint64_t) override { return model_->evaluate(names_); }

  std::vector<std::byte> save() override {
    if (kept_)
      model_->put_in_front(*kept_);
    auto text = model_->save();
    auto bytes = std::as_bytes(std::span{text});
    return {bytes.begin(), bytes.end()};
  }

 private:
  [[nodiscard]] std::string parameters(std::uint32_t workers, std::uint64_t rounds) const {
    return parameter_text(how_.parameters, workers, ctx_.seed() + rounds);
  }

  /// Called before LightGBM knows the group, so that each rank finds the same bin boundaries by itself.
  void prepare(boosting::rounds& rounds) {
    const auto& sets = rounds.sets();
    auto alone = parameters(1, 0);
    auto size = sets.training->size();
    std::vector<std::uint64_t> spread(std::min(size, how_.bin_rows));
    for (std::uint64_t i = 0; i < spread.size(); ++i)
      spread[i] = i * size / spread.size();
    auto sample = rounds.fetch(*sets.training, spread);
    auto bin = [&](const boosting::feature_table& table, const binned_set* reference) {
      auto call = rounds.in_library();
      return binned_set{library_, table.features, table.rows, alone, reference};
    };
    auto cuts = bin(sample, nullptr);
    auto add = [&](const data::data_set& set, const std::vector<std::uint64_t>& numbers) {
      auto table = rounds.fetch(set, numbers);
      auto binned = bin(table, &cuts);
      binned.set("label", table.label);
      if (!table.weight.empty())
        binned.set("weight", table.weight);
      prepared_.push_back({std::move(table), std::move(binned)});
    };
    add(*sets.training, boosting::rows_of_rank(size, ctx_.rank(), ctx_.world_size()));
    for (const auto& [name, set] : sets.evaluations) {
      add(*set, boosting::rows_of_rank(set->size(), 0, 1));
      names_.push_back(name);
    }
  }

  static void start_from(const booster& kept, prepared_set& set) {
    auto scores = kept.predict(set.table.features, set.table.rows, true);
    std::vector<double> by_output(scores.values.size());
    for (std::uint64_t row = 0; row < set.table.rows; ++row)
      for (std::uint64_t output = 0; output < scores.outputs; ++output)
        by_output[output * set.table.rows + row] = scores.values[row * scores.outputs + output];
    set.binned.set_initial_scores(by_output);
  }

  train_context& ctx_;
  settings how_;
  library_ptr library_;
  std::vector<prepared_set> prepared_;
  std::vector<std::string> names_;
  std::optional<exchange> exchange_;
  /// The model from which the booster started.
  std::optional<booster> kept_;
  std::optional<booster> model_;
};

void train(train_context& ctx, const make_training_sets& make) {
  auto how = value_or_throw(read_settings(ctx.config(), ctx.options()));
  auto file = value_or_throw(find_library(how.library));
  auto functions = value_or_throw(library::open(file));
  auto rounds = boosting::rounds{ctx, this_library, how, make, value_or_throw(serialization::describe_file(file))};
  auto mine = trees{ctx, std::move(functions), how, rounds};
  rounds.run(mine);
}

} // namespace

function training_function(std::string name, make_training_sets make) {
  auto body = [make = std::move(make)](train_context& ctx) { train(ctx, make); };
  return function{std::move(name), std::function<void(train_context&)>{std::move(body)}};
}

trainer make_trainer(const app& program, const function& train, const training_config& config) {
  auto how = value_or_throw(settings_of(config));
  return boosting::make_trainer(program, train, this_library, how, own_settings_of(how), config.rounds, config.trainer);
}

} // namespace troupe::lightgbm

#include "booster.hpp"
#include "exchange.hpp"
#include "settings.hpp"

#include <troupe/boosting/custom_metrics.hpp>
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
  trees(train_context& ctx, library_ptr functions, const settings& how, const custom_functions& custom,
        boosting::rounds& rounds)
      : ctx_(ctx), how_(how), custom_(custom), library_(std::move(functions)) {
    if (custom_.objective && !std::exchange(how_.parameters["objective"], "none").is_null())
      throw exception{errc::invalid_argument, "training_config.parameters: 'objective' cannot be set with a custom "
                                              "objective: LightGBM's predictions are then its scores"};
    prepare(rounds);
    exchange_.emplace(ctx_, library_);
  }

  /// LightGBM cannot boost a loaded model further, so a new booster starts from its scores.
  void begin(std::uint64_t rounds, std::span<const std::byte> model) override {
    model_.reset();
    kept_.reset();
    if (rounds > 0) {
      auto text = std::string{reinterpret_cast<const char*>(model.data()), model.size()};
      kept_.emplace(library_, text);
      if (!std::exchange(format_is_checked_, true))
        check_format(text, kept_->save());
      for (auto& each : prepared_)
        start_from(*kept_, each);
    }
    auto all = parameters(ctx_.world_size(), rounds);
    model_.emplace(library_, prepared_.front().binned, all, [this](int result) { exchange_->check(result); });
    for (std::size_t i = 1; i < prepared_.size(); ++i)
      model_->add_evaluation(prepared_[i].binned);
  }

  void update(std::uint64_t) override {
    if (!custom_.objective) {
      model_->update();
      return;
    }
    auto scores = model_->current(0, prepared_.front().table.rows);
    auto rows = scored(prepared_.front(), scores);
    boosting::compute_gradients(custom_.objective, rows, gradients_, hessians_);
    model_->update(gradients_, hessians_, rows.outputs);
  }

  metric_map evaluate(std::uint64_t) override {
    auto result = model_->evaluate(names_);
    auto own = boosting::custom_metrics{custom_};
    for (std::size_t i = 0; i < names_.size() && !own.empty(); ++i) {
      auto predictions = model_->current(i + 1, prepared_[i + 1].table.rows);
      own.add(names_[i], scored(prepared_[i + 1], predictions));
    }
    // Every worker has all rows of the evaluation sets.
    result.merge(own.of_these_rows());
    return result;
  }

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

  [[nodiscard]] static boosting::scored_rows scored(const prepared_set& set, std::span<const float> scores) {
    const auto& table = set.table;
    return {table.rows, table.rows == 0 ? 1 : scores.size() / table.rows, scores, table.label, table.weight};
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
  const custom_functions& custom_;
  library_ptr library_;
  std::vector<prepared_set> prepared_;
  std::vector<std::string> names_;
  std::optional<exchange> exchange_;
  bool format_is_checked_ = false;
  std::vector<float> gradients_;
  std::vector<float> hessians_;
  /// The model from which the booster started.
  std::optional<booster> kept_;
  std::optional<booster> model_;
};

void train(train_context& ctx, const make_training_sets& make, const custom_functions& custom) {
  auto how = value_or_throw(read_settings(ctx.config(), ctx.options()));
  auto file = value_or_throw(find_library(how.library));
  auto functions = value_or_throw(library::open(file));
  auto rounds = boosting::rounds{ctx, this_library, how, make, {value_or_throw(serialization::describe_file(file))}};
  auto mine = trees{ctx, std::move(functions), how, custom, rounds};
  rounds.run(mine);
}

} // namespace

function training_function(std::string name, make_training_sets make, custom_functions custom) {
  auto body = [make = std::move(make), custom = std::move(custom)](train_context& ctx) { train(ctx, make, custom); };
  return function{std::move(name), std::function<void(train_context&)>{std::move(body)}};
}

trainer make_trainer(const app& program, const function& train, const training_config& config) {
  auto how = value_or_throw(settings_of(config));
  return boosting::make_trainer(program, train, this_library, how, own_settings_of(how), config.rounds, config.trainer);
}

} // namespace troupe::lightgbm

#include "booster.hpp"
#include "library.hpp"
#include "rabit_group.hpp"
#include "settings.hpp"

#include <troupe/boosting/custom_metrics.hpp>
#include <troupe/boosting/rounds.hpp>
#include <troupe/boosting/tables.hpp>
#include <troupe/train_context.hpp>

#include <algorithm>
#include <array>
#include <deque>
#include <fmt/format.h>
#include <memory>
#include <optional>
#include <utility>

namespace troupe::xgboost {

namespace {

constexpr std::size_t longest_report = 512;

/// This rank's part of a data set, as XGBoost's matrix, and what custom functions need of it.
struct part {
  std::string name;
  matrix rows;
  std::vector<float> labels;
  std::vector<float> weights;

  [[nodiscard]] boosting::scored_rows scored(const booster::predictions& by) const {
    return {labels.size(), by.outputs, by.values, labels, weights};
  }
};

class trees final : public boosting::learner {
 public:
  trees(train_context& ctx, library_ptr functions, const settings& how, const custom_functions& custom,
        boosting::rounds& rounds)
      : ctx_(ctx), library_(std::move(functions)), parameters_(how.parameters), custom_(custom) {
    add("train", *rounds.sets().training, rounds);
    for (const auto& [name, set] : rounds.sets().evaluations)
      add(name, *set, rounds);
  }

  /// XGBoost does not save the state of its random draws, so a new booster is seeded by the round.
  void begin(std::uint64_t rounds, std::span<const std::byte> model) override {
    std::vector<void*> handles;
    for (const auto& each : parts_)
      handles.push_back(each.rows.handle());
    model_.emplace(library_, handles);
    if (rounds > 0)
      model_->load(model);
    for (const auto& [name, value] : defaults())
      if (!parameters_.contains(name))
        model_->set(name, value);
    for (const auto& [name, value] : parameters_.items())
      if (!value.is_array())
        model_->set(name, parameter_text(value));
      else
        for (const auto& each : value)
          model_->set(name, parameter_text(each));
    model_->set("seed", fmt::to_string((ctx_.seed() + rounds) & 0x7fffffff));
  }

  void update(std::uint64_t round) override {
    const auto& training = parts_.front();
    if (!custom_.objective) {
      model_->update(round - 1, training.rows);
      return;
    }
    auto scores = model_->training_scores(training.rows);
    boosting::compute_gradients(custom_.objective, training.scored(scores), gradients_, hessians_);
    model_->boost(round - 1, training.rows, scores.outputs, gradients_, hessians_);
  }

  metric_map evaluate(std::uint64_t round) override {
    std::vector<std::pair<std::string, const matrix*>> sets;
    for (const auto& each : parts_)
      sets.emplace_back(each.name, &each.rows);
    auto result = model_->evaluate(round - 1, sets);
    auto own = boosting::custom_metrics{custom_};
    if (own.empty())
      return result;
    for (const auto& each : parts_)
      own.add(each.name, each.scored(model_->predict(each.rows)));
    result.merge(own.of_all_rows(ctx_));
    return result;
  }

  std::vector<std::byte> save() override { return model_->save(); }

 private:
  [[nodiscard]] std::vector<std::pair<const char*, std::string>> defaults() const {
    std::vector<std::pair<const char*, std::string>> result{
        {"tree_method", "hist"}, {"nthread", "1"}, {"verbosity", "1"}};
    // Versions differ in whether they derive it from the labels if the gradients are the user's.
    if (custom_.objective)
      result.emplace_back("base_score", "0.5");
    return result;
  }

  void add(const std::string& name, const data::data_set& set, boosting::rounds& rounds) {
    boosting::require_rows(this_library, set, ctx_.world_size());
    auto table = rounds.fetch(set, boosting::rows_of_rank(set.size(), ctx_.rank(), ctx_.world_size()));
    auto given = parameters_.find("nthread");
    auto threads = given == parameters_.end() ? 1 : std::stoi(parameter_text(*given));
    auto call = rounds.in_library();
    auto rows = matrix{library_, table.features, table.rows, threads};
    rows.set("label", table.label);
    if (!table.weight.empty())
      rows.set("weight", table.weight);
    parts_.push_back({name, std::move(rows), std::move(table.label), std::move(table.weight)});
  }

  train_context& ctx_;
  library_ptr library_;
  nlohmann::json parameters_;
  const custom_functions& custom_;
  std::deque<part> parts_;
  std::vector<float> gradients_;
  std::vector<float> hessians_;
  std::optional<booster> model_;
};

/// Whether a rank's error is that its connection to another was cut.
bool is_of_connection(const std::string& text) {
  return std::ranges::any_of(std::array{"rabit", "llreduce", "collective"},
                             [&text](const char* word) { return text.find(word) != std::string::npos; });
}

/// XGBoost or a custom function reported an error here or on another rank, or a worker is lost; in that case the
/// collective below reports the loss. Ranks whose connection was only cut report the first message of a rank with an
/// error of its own.
[[noreturn]] void report_to_all(train_context& ctx, rabit_group& group, const std::string& mine) {
  group.leave();
  std::vector<std::uint8_t> own(longest_report);
  std::ranges::copy(mine.substr(0, longest_report - 1), own.begin());
  std::vector<std::uint8_t> all(longest_report * ctx.world_size());
  ctx.all_gather(std::span<const std::uint8_t>{own}, std::span{all});
  auto said = mine;
  for (std::size_t rank = ctx.world_size(); rank-- > 0;) {
    auto text = std::string{reinterpret_cast<const char*>(all.data() + rank * longest_report)};
    if (!text.empty() && !is_of_connection(text))
      said = text;
  }
  throw exception{errc::user_error, said};
}

void train(train_context& ctx, const make_training_sets& make, const custom_functions& custom) {
  auto how = value_or_throw(read_settings(ctx.config(), ctx.options()));
  auto functions = value_or_throw(library::open(value_or_throw(find_library(how.library))));
  auto build = boosting::library_build{functions->version().text(), check_model_version};
  auto rounds = boosting::rounds{ctx, this_library, how, make, std::move(build)};
  auto group = rabit_group{ctx, functions, how};
  try {
    auto mine = trees{ctx, functions, how, custom, rounds};
    rounds.run(mine);
  } catch (const exception& x) {
    if (x.reason().code != errc::user_error)
      throw;
    report_to_all(ctx, group, x.reason().message);
  }
  // The tracker must exist until all workers have disconnected from it.
  group.leave();
  ctx.barrier();
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

} // namespace troupe::xgboost

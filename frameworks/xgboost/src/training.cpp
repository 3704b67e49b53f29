#include "booster.hpp"
#include "rabit_group.hpp"
#include "settings.hpp"

#include <troupe/boosting/rounds.hpp>
#include <troupe/boosting/tables.hpp>
#include <troupe/train_context.hpp>

#include <algorithm>
#include <deque>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <optional>
#include <utility>

namespace troupe::xgboost {

namespace {

constexpr std::size_t longest_report = 512;

/// This rank's part of a data set, as XGBoost's matrix.
matrix part_of(const train_context& ctx, boosting::rounds& rounds, const data::data_set& set, int threads) {
  boosting::require_rows(this_library, set, ctx.world_size());
  auto mine = boosting::rows_of_rank(set.size(), ctx.rank(), ctx.world_size());
  auto table = rounds.fetch(set, mine);
  auto call = rounds.in_library();
  auto result = matrix{table.features, table.rows, threads};
  result.set("label", table.label);
  if (!table.weight.empty())
    result.set("weight", table.weight);
  return result;
}

class trees final : public boosting::learner {
 public:
  trees(const train_context& ctx, const settings& how, boosting::rounds& rounds)
      : parameters_(how.parameters), seed_(ctx.seed()) {
    auto given = parameters_.find("nthread");
    auto threads = given == parameters_.end() ? 1 : std::stoi(parameter_text(*given));
    auto add = [&](const std::string& name, const data::data_set& set) {
      parts_.push_back(part_of(ctx, rounds, set, threads));
      names_.push_back(name);
    };
    add("train", *rounds.sets().training);
    for (const auto& [name, set] : rounds.sets().evaluations)
      add(name, *set);
  }

  /// XGBoost does not save the state of its random draws, so a new booster is seeded by the round.
  void begin(std::uint64_t rounds, std::span<const std::byte> model) override {
    std::vector<void*> handles;
    for (const auto& part : parts_)
      handles.push_back(part.handle());
    model_.emplace(handles);
    if (rounds > 0)
      model_->load(model);
    for (const auto& [name, value] : std::initializer_list<std::pair<const char*, std::string>>{
             {"tree_method", "hist"}, {"nthread", "1"}, {"verbosity", "1"}})
      if (!parameters_.contains(name))
        model_->set(name, value);
    for (const auto& [name, value] : parameters_.items())
      if (!value.is_array())
        model_->set(name, parameter_text(value));
      else
        for (const auto& each : value)
          model_->set(name, parameter_text(each));
    model_->set("seed", fmt::to_string((seed_ + rounds) & 0x7fffffff));
  }

  void update(std::uint64_t round) override { model_->update(round - 1, parts_.front()); }

  metric_map evaluate(std::uint64_t round) override {
    std::vector<std::pair<std::string, const matrix*>> sets;
    for (std::size_t i = 0; i < parts_.size(); ++i)
      sets.emplace_back(names_[i], &parts_[i]);
    return model_->evaluate(round - 1, sets);
  }

  std::vector<std::byte> save() override { return model_->save(); }

 private:
  nlohmann::json parameters_;
  std::uint64_t seed_;
  std::deque<matrix> parts_;
  std::vector<std::string> names_;
  std::optional<booster> model_;
};

/// XGBoost reported an error here or on another rank, or a worker is lost; in that case the collective below reports
/// the loss. Ranks whose connection was only cut report the first message of a rank with an error of its own.
[[noreturn]] void report_to_all(train_context& ctx, rabit_group& group, const std::string& mine) {
  group.leave();
  std::vector<std::uint8_t> own(longest_report);
  std::ranges::copy(mine.substr(0, longest_report - 1), own.begin());
  std::vector<std::uint8_t> all(longest_report * ctx.world_size());
  ctx.all_gather(std::span<const std::uint8_t>{own}, std::span{all});
  auto said = mine;
  for (std::size_t rank = ctx.world_size(); rank-- > 0;) {
    auto text = std::string{reinterpret_cast<const char*>(all.data() + rank * longest_report)};
    if (!text.empty() && text.find("rabit") == std::string::npos && text.find("llreduce") == std::string::npos)
      said = text;
  }
  throw exception{errc::user_error, said};
}

void train(train_context& ctx, const make_training_sets& make) {
  auto how = value_or_throw(read_settings(ctx.config(), ctx.options()));
  auto rounds = boosting::rounds{ctx, this_library, how, make};
  auto group = rabit_group{ctx, how};
  try {
    auto mine = trees{ctx, how, rounds};
    rounds.run(mine);
  } catch (const library_error& x) {
    report_to_all(ctx, group, x.reason().message);
  }
  // The tracker must exist until all workers have disconnected from it.
  group.leave();
  ctx.barrier();
}

/// Keeps workers with different versions of XGBoost from training together.
class xgboost_framework final : public framework {
 public:
  [[nodiscard]] std::string name() const override { return "xgboost"; }
  [[nodiscard]] std::map<std::string, std::string> numerics() const override { return {{"version", version_text()}}; }
};

} // namespace

function training_function(std::string name, make_training_sets make) {
  return function{
      std::move(name),
      std::function<void(train_context&)>{[make = std::move(make)](train_context& ctx) { train(ctx, make); }},
      {std::make_shared<xgboost_framework>()}};
}

trainer make_trainer(const app& program, const function& train, const training_config& config) {
  auto how = value_or_throw(settings_of(config));
  return boosting::make_trainer(program, train, this_library, how, own_settings_of(how), config.rounds, config.trainer);
}

} // namespace troupe::xgboost

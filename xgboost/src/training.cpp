#include "booster.hpp"
#include "rabit_group.hpp"
#include "settings.hpp"

#include <troupe/data/feature_rows.hpp>
#include <troupe/inference/model_room.hpp>
#include <troupe/serialization/digest.hpp>
#include <troupe/train_context.hpp>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <optional>

namespace troupe::xgboost {

namespace {

constexpr std::size_t longest_report = 512;

/// This rank's part of a data set, as XGBoost has it.
matrix part_of(const train_context& ctx, const settings& how, const data::data_set& set, int threads) {
  if (set.size() < ctx.world_size())
    throw failure{errc::invalid_argument, "a data set of " + std::to_string(set.size()) + " samples for " +
                                              std::to_string(ctx.world_size()) +
                                              " workers: each of XGBoost's workers needs one at least"};
  auto first = set.size() * ctx.rank() / ctx.world_size();
  auto last = set.size() * (ctx.rank() + 1) / ctx.world_size();
  std::vector<std::uint64_t> numbers(last - first);
  std::iota(numbers.begin(), numbers.end(), first);
  data::batch samples;
  value_or_throw(set.fetch(numbers, samples));
  auto column = [&](const std::string& name) {
    auto values = value_or_throw(data::feature_rows(samples, std::span{&name, 1}));
    if (values.size() != numbers.size())
      throw failure{errc::mismatch, "column '" + name + "' is no single number"};
    return values;
  };
  auto result = matrix{value_or_throw(data::feature_rows(samples, how.features)), numbers.size(), threads};
  result.set("label", column(how.label));
  if (!how.weight.empty())
    result.set("weight", column(how.weight));
  return result;
}

class boosting {
 public:
  boosting(train_context& ctx, const make_training_sets& make)
      : ctx_(ctx), how_(value_or_throw(read_settings(ctx.config(), ctx.options()))), sets_(make(ctx)) {
    if (sets_.training == nullptr)
      throw failure{errc::user_error, "make_training_sets has given no training set"};
    if (ctx_.steps() == 0)
      throw failure{errc::invalid_argument, "nobody says how many rounds to do: set training_config.rounds"};
    compare_data();
    track();
  }

  void run() {
    group_.emplace(ctx_, how_.deadline);
    try {
      prepare();
      for (auto round = ctx_.restored_step() + 1; round <= ctx_.steps(); ++round)
        if (!do_round(round))
          break;
    } catch (const library_error& x) {
      tell_all(x.reason().message);
    }
    // The tracker is there until nobody says good-bye to it any more.
    group_->leave();
    ctx_.barrier();
  }

 private:
  /// Workers that read different data would train on them without a word.
  void compare_data() {
    auto mine = sets_.training->fingerprint();
    for (const auto& [name, set] : sets_.evaluations)
      mine += " " + name + " " + set->fingerprint();
    auto& before = ctx_.state().values()[description_value];
    if (ctx_.restored_step() > 0 && before.is_object() && before.value("data", mine) != mine)
      throw failure{errc::mismatch, "this run cannot go on from its checkpoint: the data sets are others than it was "
                                    "begun with. Use those, or choose another run name"};
    before = {{"features", how_.features}, {"label", how_.label}, {"data", mine}};
    std::array<std::uint64_t, 2> words{serialization::xxh3(serialization::bytes_of(mine)), 0};
    words[1] = ~words[0];
    std::vector<std::uint64_t> all(words.size() * ctx_.world_size());
    ctx_.all_gather(std::span<const std::uint64_t>{words}, std::span{all});
    for (std::size_t rank = 1; rank < ctx_.world_size(); ++rank)
      if (all[2 * rank] != all[0])
        throw failure{errc::mismatch,
                      "rank " + std::to_string(rank) + " has other data than rank 0: give all hosts the same files"};
  }

  void track() {
    room_.resize(how_.model_bytes);
    ctx_.state().track(model_tensor, room_);
  }

  void prepare() {
    auto given = how_.parameters.find("nthread");
    auto threads = given == how_.parameters.end() ? 1 : std::stoi(parameter_text(*given));
    parts_.push_back(part_of(ctx_, how_, *sets_.training, threads));
    names_.emplace_back("train");
    for (const auto& [name, set] : sets_.evaluations) {
      parts_.push_back(part_of(ctx_, how_, *set, threads));
      names_.push_back(name);
    }
    make_booster(ctx_.restored_step());
  }

  /// Of the model that `room_` holds after `rounds` rounds. What XGBoost draws samples with is in no file: at every
  /// checkpoint a new booster goes on from there, seeded by the round, as it would after a loss.
  void make_booster(std::uint64_t rounds) {
    std::vector<void*> handles;
    for (const auto& part : parts_)
      handles.push_back(part.handle());
    model_.emplace(handles);
    if (rounds > 0)
      model_->load(value_or_throw(inference::get_model(std::as_bytes(std::span{room_}))));
    for (const auto& [name, value] : std::initializer_list<std::pair<const char*, std::string>>{
             {"tree_method", "hist"}, {"nthread", "1"}, {"verbosity", "1"}})
      if (!how_.parameters.contains(name))
        model_->set(name, value);
    for (const auto& [name, value] : how_.parameters.items())
      if (!value.is_array())
        model_->set(name, parameter_text(value));
      else
        for (const auto& each : value)
          model_->set(name, parameter_text(each));
    model_->set("seed", std::to_string((ctx_.seed() + rounds) & 0x7fffffff));
  }

  /// False when the run is to end.
  bool do_round(std::uint64_t round) {
    model_->update(round - 1, parts_.front());
    std::vector<std::pair<std::string, const matrix*>> sets;
    for (std::size_t i = 0; i < parts_.size(); ++i)
      sets.emplace_back(names_[i], &parts_[i]);
    auto metrics = model_->evaluate(round - 1, sets);
    std::int32_t stop = ctx_.stop_requested() ? 1 : 0;
    ctx_.all_reduce(std::span{&stop, 1}, reduction::max);
    auto due = stop != 0 || round == ctx_.steps() || (how_.checkpoint_every > 0 && round % how_.checkpoint_every == 0);
    if (due)
      keep_model();
    ctx_.report(std::move(metrics), due ? save_checkpoint::yes : save_checkpoint::no);
    if (due && stop == 0 && round < ctx_.steps())
      make_booster(round);
    return stop == 0;
  }

  /// All ranks have the same trees; the checkpoint has rank 0's bytes.
  void keep_model() {
    std::array<std::uint64_t, 1> fits{1};
    auto written = expected<void>{};
    if (ctx_.rank() == 0) {
      written = inference::put_model(model_->save(), std::as_writable_bytes(std::span{room_}));
      fits[0] = written ? 1 : 0;
    }
    ctx_.broadcast(std::span<std::uint64_t>{fits});
    if (!written)
      throw failure{std::move(written.error())};
    if (fits[0] == 0)
      throw failure{errc::unsatisfiable, "the model is larger than its room in checkpoints: see rank 0"};
    ctx_.broadcast(std::span{room_});
  }

  /// XGBoost has refused something, here or on another rank, or a worker is gone: then the barrier's loss is told. Who
  /// was only cut off says what the first said whom nobody has cut off.
  [[noreturn]] void tell_all(const std::string& mine) {
    group_->leave();
    std::vector<std::uint8_t> own(longest_report);
    std::ranges::copy(mine.substr(0, longest_report - 1), own.begin());
    std::vector<std::uint8_t> all(longest_report * ctx_.world_size());
    ctx_.all_gather(std::span<const std::uint8_t>{own}, std::span{all});
    auto said = mine;
    for (std::size_t rank = ctx_.world_size(); rank-- > 0;) {
      auto text = std::string{reinterpret_cast<const char*>(all.data() + rank * longest_report)};
      if (!text.empty() && text.find("rabit") == std::string::npos && text.find("llreduce") == std::string::npos)
        said = text;
    }
    throw failure{errc::user_error, said};
  }

  train_context& ctx_;
  settings how_;
  training_sets sets_;
  std::vector<std::uint8_t> room_;
  std::optional<rabit_group> group_;
  std::deque<matrix> parts_;
  std::vector<std::string> names_;
  std::optional<booster> model_;
};

/// Workers with other versions of XGBoost do not train together.
class xgboost_backend final : public backend {
 public:
  [[nodiscard]] std::string name() const override { return "xgboost"; }
  [[nodiscard]] std::map<std::string, std::string> numerics() const override { return {{"version", version_text()}}; }
};

} // namespace

named_function training_function(std::string name, make_training_sets make) {
  named_function result;
  result.name = std::move(name);
  result.backends.push_back(std::make_shared<xgboost_backend>());
  result.function = [make = std::move(make)](train_context& ctx) { boosting{ctx, make}.run(); };
  return result;
}

trainer make_trainer(const app& program, std::string function, const training_config& config) {
  auto how = value_or_throw(settings_of(config));
  how.model_bytes = inference::room_of_latest(config.trainer.run, model_tensor).value_or(how.model_bytes);
  auto all = config.trainer;
  all.run.steps = config.rounds;
  all.config = config_of(how, config.trainer.config);
  all.options = options_of(how, config.trainer.options);
  return trainer{program, std::move(function), std::move(all)};
}

const nlohmann::json& user_config(const train_context& ctx) {
  return ctx.config().at("config");
}

const nlohmann::json& user_options(const train_context& ctx) {
  return ctx.options().at("options");
}

} // namespace troupe::xgboost

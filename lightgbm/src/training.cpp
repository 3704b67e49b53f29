#include "booster.hpp"
#include "exchange.hpp"
#include "settings.hpp"

#include <troupe/data/feature_rows.hpp>
#include <troupe/inference/model_room.hpp>
#include <troupe/serialization/digest.hpp>
#include <troupe/train_context.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

namespace troupe::lightgbm {

namespace {

/// Rows of a data set as LightGBM takes them.
struct feature_table {
  std::uint64_t rows = 0;
  std::vector<float> features;
  std::vector<float> label;
  std::vector<float> weight;
};

feature_table fetch(const settings& how, const data::data_set& set, std::span<const std::uint64_t> numbers) {
  data::batch samples;
  value_or_throw(set.fetch(numbers, samples));
  auto column = [&](const std::string& name) {
    auto values = value_or_throw(data::feature_rows(samples, std::span{&name, 1}));
    if (values.size() != numbers.size())
      throw failure{errc::mismatch, "column '" + name + "' is no single number"};
    return values;
  };
  feature_table result{
      numbers.size(), value_or_throw(data::feature_rows(samples, how.features)), column(how.label), {}};
  if (!how.weight.empty())
    result.weight = column(how.weight);
  return result;
}

std::vector<std::uint64_t> range(std::uint64_t first, std::uint64_t last) {
  std::vector<std::uint64_t> result(last - first);
  std::iota(result.begin(), result.end(), first);
  return result;
}

/// A set that LightGBM trains on or evaluates.
struct prepared_set {
  feature_table table;
  binned_set binned;
};

class boosting {
 public:
  boosting(train_context& ctx, const make_training_sets& make)
      : ctx_(ctx), how_(value_or_throw(read_settings(ctx.config(), ctx.options()))), sets_(make(ctx)) {
    if (sets_.training == nullptr)
      throw failure{errc::user_error, "make_training_sets has given no training set"};
    if (ctx_.steps() == 0)
      throw failure{errc::invalid_argument, "nobody says how many rounds to do: set training_config.rounds"};
    if (sets_.training->size() < ctx_.world_size())
      throw failure{errc::invalid_argument, "a data set of " + std::to_string(sets_.training->size()) +
                                                " samples for " + std::to_string(ctx_.world_size()) +
                                                " workers: each of LightGBM's workers needs one at least"};
    library_ = value_or_throw(library::open(value_or_throw(find_library(how_.library))));
    compare_data();
    room_.resize(how_.model_bytes);
    ctx_.state().track(model_tensor, room_);
  }

  void run() {
    prepare();
    exchange_.emplace(ctx_, library_);
    make_booster(ctx_.restored_step());
    for (auto round = ctx_.restored_step() + 1; round <= ctx_.steps(); ++round)
      if (!do_round(round))
        break;
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
    std::array<std::uint64_t, 1> digest{serialization::xxh3(serialization::bytes_of(mine))};
    std::vector<std::uint64_t> all(ctx_.world_size());
    ctx_.all_gather(std::span<const std::uint64_t>{digest}, std::span{all});
    for (std::size_t rank = 1; rank < all.size(); ++rank)
      if (all[rank] != all[0])
        throw failure{errc::mismatch,
                      "rank " + std::to_string(rank) + " has other data than rank 0: give all hosts the same files"};
  }

  [[nodiscard]] std::string parameters(std::uint32_t workers, std::uint64_t rounds) const {
    return parameter_text(how_.parameters, workers, ctx_.seed() + rounds);
  }

  /// Before the group is known to LightGBM: all ranks find the same cuts, each by itself.
  void prepare() {
    auto alone = parameters(1, 0);
    auto size = sets_.training->size();
    std::vector<std::uint64_t> spread(std::min(size, how_.bin_rows));
    for (std::uint64_t i = 0; i < spread.size(); ++i)
      spread[i] = i * size / spread.size();
    auto sample = fetch(how_, *sets_.training, spread);
    auto cuts = binned_set{library_, sample.features, sample.rows, alone};
    auto add = [&](feature_table table) {
      auto binned = binned_set{library_, table.features, table.rows, alone, &cuts};
      binned.set("label", table.label);
      if (!table.weight.empty())
        binned.set("weight", table.weight);
      prepared_.push_back({std::move(table), std::move(binned)});
    };
    auto ranks = std::uint64_t{ctx_.world_size()};
    add(fetch(how_, *sets_.training, range(size * ctx_.rank() / ranks, size * (ctx_.rank() + 1) / ranks)));
    for (const auto& [name, set] : sets_.evaluations) {
      add(fetch(how_, *set, range(0, set->size())));
      names_.push_back(name);
    }
  }

  /// Of the model that `room_` holds after `rounds` rounds. A model that is loaded predicts, and boosts no further: a
  /// new booster begins with its scores. So it does at every checkpoint, as it would after a loss.
  void make_booster(std::uint64_t rounds) {
    model_.reset();
    kept_.reset();
    if (rounds > 0) {
      auto text = value_or_throw(inference::get_model(std::as_bytes(std::span{room_})));
      kept_.emplace(library_, std::string{reinterpret_cast<const char*>(text.data()), text.size()});
      for (auto& each : prepared_)
        start_from(*kept_, each);
    }
    auto all = parameters(ctx_.world_size(), rounds);
    model_.emplace(library_, prepared_.front().binned, all, [this](int result) { exchange_->check(result); });
    for (std::size_t i = 1; i < prepared_.size(); ++i)
      model_->add_evaluation(prepared_[i].binned);
  }

  static void start_from(const booster& kept, prepared_set& set) {
    auto scores = kept.predict(set.table.features, set.table.rows, true);
    std::vector<double> by_output(scores.values.size());
    for (std::uint64_t row = 0; row < set.table.rows; ++row)
      for (std::uint64_t output = 0; output < scores.outputs; ++output)
        by_output[output * set.table.rows + row] = scores.values[row * scores.outputs + output];
    set.binned.set_initial_scores(by_output);
  }

  /// False when the run is to end.
  bool do_round(std::uint64_t round) {
    model_->update();
    auto metrics = model_->evaluate(names_);
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
      if (kept_)
        model_->put_in_front(*kept_);
      auto text = model_->save();
      written = inference::put_model(std::as_bytes(std::span{text}), std::as_writable_bytes(std::span{room_}));
      fits[0] = written ? 1 : 0;
    }
    ctx_.broadcast(std::span<std::uint64_t>{fits});
    if (!written)
      throw failure{std::move(written.error())};
    if (fits[0] == 0)
      throw failure{errc::unsatisfiable, "the model is larger than its room in checkpoints: see rank 0"};
    ctx_.broadcast(std::span{room_});
  }

  train_context& ctx_;
  settings how_;
  training_sets sets_;
  library_ptr library_;
  std::vector<std::uint8_t> room_;
  std::vector<prepared_set> prepared_;
  std::vector<std::string> names_;
  std::optional<exchange> exchange_;
  /// What the booster goes on from.
  std::optional<booster> kept_;
  std::optional<booster> model_;
};

} // namespace

named_function training_function(std::string name, make_training_sets make) {
  named_function result;
  result.name = std::move(name);
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

} // namespace troupe::lightgbm

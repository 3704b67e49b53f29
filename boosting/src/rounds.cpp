#include <troupe/boosting/rounds.hpp>

#include <troupe/boosting/tables.hpp>
#include <troupe/inference/model_room.hpp>
#include <troupe/serialization/digest.hpp>

#include <array>
#include <string>
#include <utility>

namespace troupe::boosting {

rounds::rounds(train_context& ctx, const framework& library, settings how, const make_training_sets& make)
    : ctx_(ctx), how_(std::move(how)), sets_(make(ctx)) {
  if (sets_.training == nullptr)
    throw failure{errc::user_error, "make_training_sets has given no training set"};
  for (const auto& [name, set] : sets_.evaluations)
    if (set == nullptr)
      throw failure{errc::user_error, "make_training_sets has given no evaluation set '" + name + "'"};
  if (ctx_.steps() == 0)
    throw failure{errc::invalid_argument, "nobody says how many rounds to do: set training_config.rounds"};
  compare_data(library);
  require_rows(library, *sets_.training, ctx_.world_size());
  room_.resize(how_.model_bytes);
  ctx_.state().track(library.model_tensor(), room_);
}

void rounds::run(learner& trees) {
  begin(trees, ctx_.restored_step());
  for (auto round = ctx_.restored_step() + 1; round <= ctx_.steps(); ++round)
    if (!do_round(trees, round))
      break;
}

/// Workers that read different data would train on them without a word.
void rounds::compare_data(const framework& library) {
  auto mine = sets_.training->fingerprint();
  for (const auto& [name, set] : sets_.evaluations)
    mine += " " + name + " " + set->fingerprint();
  auto& before = ctx_.state().values()[library.key];
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

void rounds::begin(learner& trees, std::uint64_t rounds) {
  if (rounds == 0)
    trees.begin(0, {});
  else
    trees.begin(rounds, value_or_throw(inference::get_model(std::as_bytes(std::span{room_}))));
}

bool rounds::do_round(learner& trees, std::uint64_t round) {
  trees.update(round);
  auto metrics = trees.evaluate(round);
  std::int32_t stop = ctx_.stop_requested() ? 1 : 0;
  ctx_.all_reduce(std::span{&stop, 1}, reduction::max);
  auto due = stop != 0 || round == ctx_.steps() || (how_.checkpoint_every > 0 && round % how_.checkpoint_every == 0);
  if (due)
    keep_model(trees);
  ctx_.report(std::move(metrics), due ? save_checkpoint::yes : save_checkpoint::no);
  if (due && stop == 0 && round < ctx_.steps())
    begin(trees, round);
  return stop == 0;
}

/// All ranks have the same trees; the checkpoint has rank 0's bytes.
void rounds::keep_model(learner& trees) {
  std::array<std::uint64_t, 1> fits{1};
  auto written = expected<void>{};
  if (ctx_.rank() == 0) {
    written = inference::put_model(trees.save(), std::as_writable_bytes(std::span{room_}));
    fits[0] = written ? 1 : 0;
  }
  ctx_.broadcast(std::span<std::uint64_t>{fits});
  if (!written)
    throw failure{std::move(written.error())};
  if (fits[0] == 0)
    throw failure{errc::unsatisfiable, "the model is larger than its room in checkpoints: see rank 0"};
  ctx_.broadcast(std::span{room_});
}

} // namespace troupe::boosting

#include <troupe/boosting/rounds.hpp>

#include <troupe/boosting/stored_model.hpp>
#include <troupe/data/exact_reduction.hpp>
#include <troupe/data/preprocessor.hpp>
#include <troupe/inference/model_storage.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fmt/format.h>
#include <string>
#include <utility>

namespace troupe::boosting {

namespace {

/// Throws unless all ranks pass the same text.
void compare_ranks(train_context& ctx, const std::string& mine, const std::string& what) {
  std::array<std::uint64_t, 1> digest{serialization::xxh3(serialization::bytes_of(mine))};
  std::vector<std::uint64_t> all(ctx.world_size());
  ctx.all_gather(std::span<const std::uint64_t>{digest}, std::span{all});
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw exception{errc::mismatch, fmt::format("rank {} has {}", rank, what)};
}

/// Why a run cannot resume with another build.
std::string refused_build(const tree_library& library, const std::string& why) {
  return fmt::format("this run cannot resume from its checkpoint with another {}: {}. Use the one it was started with, "
                     "or choose another run name",
                     library.name, why);
}

/// Throws unless all ranks have the same build.
void compare_builds(train_context& ctx, const tree_library& library, const std::string& mine) {
  constexpr std::size_t longest = 128;
  std::vector<std::uint8_t> own(longest);
  std::ranges::copy(mine.substr(0, longest - 1), own.begin());
  std::vector<std::uint8_t> all(longest * ctx.world_size());
  ctx.all_gather(std::span<const std::uint8_t>{own}, std::span{all});
  auto of = [&all](std::size_t rank) {
    return std::string{reinterpret_cast<const char*>(all.data() + rank * longest)};
  };
  for (std::size_t rank = 1; rank < ctx.world_size(); ++rank)
    if (of(rank) != of(0))
      throw exception{errc::mismatch,
                      fmt::format("rank {} has another {} than rank 0 ({}, not {}): install the same library on all "
                                  "hosts",
                                  rank, library.name, of(rank), of(0))};
}

} // namespace

rounds::rounds(train_context& ctx, const tree_library& library, settings how, const make_training_sets& make,
               library_build build)
    : ctx_(ctx), library_(library), build_(std::move(build)), how_(std::move(how)), sets_(make(ctx)), watch_([&ctx] {
        ctx.heartbeat();
      }) {
  if (sets_.training == nullptr)
    throw exception{errc::user_error, "make_training_sets returned no training set"};
  for (const auto& [name, set] : sets_.evaluations)
    if (set == nullptr)
      throw exception{errc::user_error, fmt::format("make_training_sets returned no evaluation set '{}'", name)};
  if (ctx_.steps() == 0)
    throw exception{errc::invalid_argument, "the number of rounds is not known: set training_config.rounds"};
  compare();
  require_rows(library, *sets_.training, ctx_.world_size());
  storage_.resize(how_.model_bytes);
  ctx_.state().track(library.model_tensor(), storage_);
}

feature_table rounds::fetch(const data::data_set& set, std::span<const std::uint64_t> numbers) const {
  return fetch_table(how_, set, numbers, categories_, [this] { ctx_.heartbeat(); });
}

void rounds::run(learner& trees) {
  resume(trees);
  for (auto round = ctx_.restored_step() + 1; round <= ctx_.steps(); ++round)
    if (!do_round(trees, round))
      break;
}

/// Detects workers that read different data or use another build, which would otherwise train without an error.
void rounds::compare() {
  auto data = sets_.training->fingerprint();
  for (const auto& [name, set] : sets_.evaluations)
    data += fmt::format(" {} {}", name, set->fingerprint());
  if (sets_.preprocessor)
    data += fmt::format(" {}", sets_.preprocessor->description().dump());
  const auto& before = ctx_.state().values()[library_.key];
  const auto resumes = ctx_.restored_step() > 0 && before.is_object();
  if (resumes && before.value("data", data) != data)
    throw exception{errc::mismatch, "this run cannot resume from its checkpoint: the data sets are not those it was "
                                    "started with. Use those, or choose another run name"};
  compare_ranks(ctx_, data, "other data than rank 0: give all hosts the same files");
  compare_builds(ctx_, library_, build_.id);
  if (resumes)
    compare_build(before.value("build", build_.id));
  preprocess();
  remember(data);
}

void rounds::compare_build(const std::string& before) {
  if (before == build_.id)
    return;
  earlier_build_ = before;
  if (build_.accepts != nullptr)
    if (auto accepted = build_.accepts(before, build_.id); !accepted)
      throw exception{errc::mismatch, refused_build(library_, accepted.error().message)};
  if (ctx_.rank() == 0)
    fmt::print(
        stderr,
        "warning: {} is not the one that wrote the checkpoint of step {} ({} then, {} now): the run goes on, and "
        "further trees have the bits of the new one\n",
        library_.name, ctx_.restored_step(), before, build_.id);
}

void rounds::preprocess() {
  if (!sets_.preprocessor)
    return;
  auto reduction = data::context_reduction{ctx_};
  sets_.preprocessor->fit(*sets_.training, reduction);
  sets_.preprocessor->track(ctx_.state(), library_.key);
  sets_.training = value_or_throw(data::transformed(sets_.training, sets_.preprocessor));
  for (auto& [name, set] : sets_.evaluations)
    set = value_or_throw(data::transformed(set, sets_.preprocessor));
}

/// Stores what a resumed run and a predictor need.
void rounds::remember(const std::string& data) {
  auto columns = how_.features;
  columns.push_back(how_.label);
  auto texts = data::categories_of(sets_.training->columns(), columns);
  categories_ = data::known_categories{texts};
  auto& values = ctx_.state().values()[library_.key];
  values = {{"features", how_.features}, {"label", how_.label}, {"data", data}, {"build", build_.id}};
  if (!texts.empty())
    values["categories"] = json_of(texts);
  if (sets_.preprocessor)
    values["preprocessed"] = true;
}

void rounds::begin(learner& trees, std::uint64_t rounds) {
  auto call = in_library();
  if (rounds == 0)
    trees.begin(0, {});
  else
    trees.begin(rounds, value_or_throw(inference::get_model(std::as_bytes(std::span{storage_}))));
}

void rounds::resume(learner& trees) {
  try {
    begin(trees, ctx_.restored_step());
  } catch (const exception& x) {
    // The library rejected a model that another one wrote.
    if (earlier_build_.empty() || x.reason().code != errc::user_error)
      throw;
    throw exception{errc::mismatch,
                    refused_build(library_, fmt::format("{} wrote its model, which {} cannot read: {}", earlier_build_,
                                                        build_.id, x.reason().message))};
  }
}

metric_map rounds::compute(learner& trees, std::uint64_t round) {
  {
    auto call = in_library();
    trees.update(round);
  }
  auto call = in_library();
  return trees.evaluate(round);
}

bool rounds::do_round(learner& trees, std::uint64_t round) {
  auto metrics = compute(trees, round);
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

/// All ranks have the same trees; the checkpoint stores rank 0's bytes.
void rounds::keep_model(learner& trees) {
  std::array<std::uint64_t, 1> fits{1};
  auto written = expected<void>{};
  if (ctx_.rank() == 0) {
    auto call = in_library();
    written = inference::put_model(trees.save(), std::as_writable_bytes(std::span{storage_}));
    fits[0] = written ? 1 : 0;
  }
  ctx_.broadcast(std::span<std::uint64_t>{fits});
  if (!written)
    throw exception{std::move(written.error())};
  if (fits[0] == 0)
    throw exception{errc::unsatisfiable, "the model does not fit into its tensor in checkpoints: see rank 0"};
  ctx_.broadcast(std::span{storage_});
}

} // namespace troupe::boosting

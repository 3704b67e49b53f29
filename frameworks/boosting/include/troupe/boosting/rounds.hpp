#pragma once

#include <troupe/boosting.hpp>
#include <troupe/boosting/settings.hpp>
#include <troupe/boosting/tables.hpp>
#include <troupe/boosting/work_watch.hpp>
#include <troupe/data/feature_rows.hpp>
#include <troupe/error.hpp>
#include <troupe/metrics.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe::boosting {

/// A library's trees during training, on one rank. Calls are collective: all ranks make the same ones in the same
/// order, except for `save`. Errors of the library are thrown as `exception`.
class learner {
 public:
  learner() = default;
  learner(const learner&) = delete;
  learner& operator=(const learner&) = delete;
  virtual ~learner() = default;

  /// Starts boosting on top of `model`, which was saved after `rounds` rounds, or from nothing if that is 0. Discards
  /// all earlier state, so that the result does not depend on whether the run continues in this process or in another.
  virtual void begin(std::uint64_t rounds, std::span<const std::byte> model) = 0;

  /// Computes one round, numbered from 1.
  virtual void update(std::uint64_t round) = 0;

  /// The metrics of the evaluation sets after this round, as "NAME-METRIC".
  [[nodiscard]] virtual metric_map evaluate(std::uint64_t round) = 0;

  /// The model of all rounds in the library's own format. Called on rank 0 only; if training continues, `begin` is
  /// called next.
  [[nodiscard]] virtual std::vector<std::byte> save() = 0;
};

/// The library on this host, on which a run's bits depend.
struct library_build {
  /// A version, or a fingerprint of its file. Must be the same on all ranks.
  std::string id;
  /// Whether a run that began with the library `earlier` can go on with `now`: an error says why not. Without it, the
  /// library decides when it reads the model.
  expected<void> (*accepts)(const std::string& earlier, const std::string& now) = nullptr;
};

/// A run from its first round, or the one it resumes from, to its last. A round is a step.
class rounds {
 public:
  /// Makes the data sets, and checks that they equal those of the other ranks and those of the resumed checkpoint.
  /// `build` must equal that of the other ranks; a run resumes with another one, with a warning, if the model can be
  /// read. Tracks the memory for the model. Called on all ranks. Throws `exception`.
  rounds(train_context& ctx, const tree_library& library, settings how, const make_training_sets& make,
         library_build build);
  rounds(const rounds&) = delete;
  rounds& operator=(const rounds&) = delete;

  [[nodiscard]] const training_sets& sets() const noexcept { return sets_; }

  /// Fetches rows of one of these sets, with the training set's category codes.
  [[nodiscard]] feature_table fetch(const data::data_set& set, std::span<const std::uint64_t> numbers) const;

  /// Marks this thread as being in a library call, which may take long, while the result exists.
  [[nodiscard]] work_watch::call in_library() { return work_watch::call{watch_}; }

  /// Computes the remaining rounds. At each due checkpoint the model is saved, and training begins again from it.
  void run(learner& trees);

 private:
  void compare();
  /// Compares the library with that of the checkpoint.
  void compare_build(const std::string& before);
  void remember(const std::string& data);
  void preprocess();
  void begin(learner& trees, std::uint64_t rounds);
  void resume(learner& trees);
  [[nodiscard]] metric_map compute(learner& trees, std::uint64_t round);
  /// False if the run is to end.
  [[nodiscard]] bool do_round(learner& trees, std::uint64_t round);
  void keep_model(learner& trees);

  train_context& ctx_;
  tree_library library_;
  library_build build_;
  /// The build that wrote the checkpoint, if it is another one.
  std::string earlier_build_;
  settings how_;
  training_sets sets_;
  data::known_categories categories_;
  work_watch watch_;
  std::vector<std::uint8_t> storage_;
};

} // namespace troupe::boosting

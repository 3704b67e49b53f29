#pragma once

#include <troupe/boosting.hpp>
#include <troupe/boosting/settings.hpp>
#include <troupe/boosting/tables.hpp>
#include <troupe/boosting/work_watch.hpp>
#include <troupe/data/feature_rows.hpp>
#include <troupe/messages.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe::boosting {

/// A library's trees while they are trained, on one rank. All ranks are asked the same in the same order, except for
/// `save`. What the library refuses is thrown as `exception`.
class learner {
 public:
  learner() = default;
  learner(const learner&) = delete;
  learner& operator=(const learner&) = delete;
  virtual ~learner() = default;

  /// What follows is boosted onto `model`, which was saved after so many rounds; from nothing where that is 0. Leaves
  /// nothing of what was before. So it comes to the same, whether a run goes on in this process or in another.
  virtual void begin(std::uint64_t rounds, std::span<const std::byte> model) = 0;

  /// One round; the first is 1.
  virtual void update(std::uint64_t round) = 0;

  /// The metrics of the evaluation sets after this round, as "NAME-METRIC".
  [[nodiscard]] virtual metric_map evaluate(std::uint64_t round) = 0;

  /// The model, of all rounds, in the library's own format. Rank 0 is asked alone, and `begin` comes next, if
  /// anything does.
  [[nodiscard]] virtual std::vector<std::byte> save() = 0;
};

/// A run from its first round, or the one that it goes on from, to its last. A round is a step.
class rounds {
 public:
  /// Makes the data sets and compares them: with the other ranks', and with those that the run was begun with. The same
  /// with `build`, which says what the library's bits depend on; empty where the numerics fingerprint has it. Tracks
  /// the room for the model. All ranks make one. Throws `exception`.
  rounds(train_context& ctx, const tree_library& library, settings how, const make_training_sets& make,
         const std::string& build = {});
  rounds(const rounds&) = delete;
  rounds& operator=(const rounds&) = delete;

  [[nodiscard]] const training_sets& sets() const noexcept { return sets_; }

  /// Rows of one of these sets, with the training set's categories.
  [[nodiscard]] feature_table fetch(const data::data_set& set, std::span<const std::uint64_t> numbers) const;

  /// Until its end, this thread is in a call of the library's, which may take long.
  [[nodiscard]] work_watch::call in_library() { return work_watch::call{watch_}; }

  /// Does the rounds that are left. At each checkpoint that is due the model is kept, and begun with again.
  void run(learner& trees);

 private:
  void compare(const tree_library& library, const std::string& build);
  void remember(const tree_library& library, const std::string& data, const std::string& build);
  void preprocess(const tree_library& library);
  void begin(learner& trees, std::uint64_t rounds);
  [[nodiscard]] metric_map compute(learner& trees, std::uint64_t round);
  /// False when the run is to end.
  [[nodiscard]] bool do_round(learner& trees, std::uint64_t round);
  void keep_model(learner& trees);

  train_context& ctx_;
  settings how_;
  training_sets sets_;
  data::known_categories categories_;
  work_watch watch_;
  std::vector<std::uint8_t> room_;
};

} // namespace troupe::boosting

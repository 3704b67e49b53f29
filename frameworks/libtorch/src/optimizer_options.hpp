#pragma once

#include <troupe/training/schedule.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace torch::optim {
class LRScheduler;
class Optimizer;
class OptimizerParamGroup;
} // namespace torch::optim

namespace troupe::libtorch {

/// The numbers among the options of each of the optimizer's groups, such as the learning rate, as tracked memory, and
/// the schedulers that change them.
///
/// The tracked copy has the options that the program began with and the present ones. A resumed run goes on with the
/// present ones only if its program begins with the same: a learning rate that was changed in the program counts. It is
/// updated at the end of each step's body, so that the body may set options when it likes. Used by the training thread.
class optimizer_options {
 public:
  /// `optimizer` outlives this object.
  explicit optimizer_options(torch::optim::Optimizer& optimizer);

  /// From now on the scheduler takes a step after every `steps` steps of the optimizer. It outlives this object.
  void add(torch::optim::LRScheduler& scheduler, std::uint64_t steps);

  /// From now on each step's learning rates are the present ones times the schedule's factor.
  void follow(training::schedule factor);

  /// [2, groups, numbers of a group].
  [[nodiscard]] std::vector<double>& values() noexcept { return values_; }
  [[nodiscard]] std::vector<std::uint64_t> shape() const;

  /// What is tracked has been restored or not, and the first step is still to come.
  void on_tracked() { restored_ = values_; }

  /// Before the first step that follows on a state which this process has not computed. `steps` is how many the
  /// optimizer has taken in that state.
  void load(std::uint64_t steps);

  /// The optimizer is about to take a step, in the run's step of this number.
  void on_apply(std::uint64_t number);

  /// The optimizer has taken a step, in all `steps`.
  void on_step(std::uint64_t steps);

  /// The body of a step is over. Returns whether somebody has changed options since the optimizer's step.
  [[nodiscard]] bool store();

 private:
  struct scheduled {
    torch::optim::LRScheduler* scheduler;
    std::uint64_t every;
    /// How often it has taken a step.
    std::uint64_t taken = 0;
  };

  [[nodiscard]] std::vector<double> present() const;
  void set(std::vector<double> numbers);
  void run_schedulers(std::uint64_t steps);

  torch::optim::Optimizer& optimizer_;
  std::size_t numbers_of_group_ = 0;
  std::vector<scheduled> schedulers_;
  std::optional<training::schedule> factor_;
  /// The learning rates of the groups that `factor_` multiplies.
  std::vector<double> rates_;
  std::vector<double> values_;
  std::vector<double> restored_;
  /// Options that the program, or the program of the members, began with.
  std::vector<double> first_;
  /// After the last step.
  std::vector<double> after_step_;
};

} // namespace troupe::libtorch

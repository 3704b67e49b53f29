#pragma once

#include <troupe/tracked_state.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::training {

enum class better : std::uint8_t { lower, higher };

struct plateau_options {
  better is = better::lower;
  /// By how much to multiply.
  double factor = 0.1;
  /// Observations without an improvement before that.
  std::uint64_t patience = 10;
  /// The share of the best value by which one must be better to count.
  double threshold = 1e-4;
  /// Observations after that in which nothing is counted.
  std::uint64_t cooldown = 0;
  double smallest = 0;
};

/// A factor of the learning rate that falls when a metric no longer improves: PyTorch's ReduceLROnPlateau with a
/// relative threshold. The metric is the same on every worker (`step.mean_loss()`, `train_context::evaluate`), and so
/// is the factor.
class plateau {
 public:
  /// Tracks what it knows, and restores a checkpoint's. Throws `exception` as `tracked_state::track` does, and
  /// `errc::invalid_argument` for a factor that is not between 0 and 1.
  explicit plateau(tracked_state& state, plateau_options options = {}, std::string name = "plateau");

  /// After `all_reduce`. Returns whether the factor has become smaller. NaN is no improvement.
  bool observe(double metric);

  [[nodiscard]] double factor() const noexcept { return state_[0]; }

 private:
  [[nodiscard]] bool is_better(double metric) const noexcept;

  plateau_options options_;
  /// The factor, the best metric, observations since then, and those of the cooldown to come.
  std::vector<double> state_;
};

} // namespace troupe::training

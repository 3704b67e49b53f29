#pragma once

#include <troupe/troupe.hpp>

#include <cstdint>
#include <string>
#include <vector>

/// The examples' model and data: a line through synthetic points. first_run.cpp contains the same in one file.
namespace example {

class points {
 public:
  explicit points(std::size_t size) : x_(size), y_(size) {
    auto random = troupe::random_stream{1, "points"};
    for (std::size_t i = 0; i < size; ++i) {
      x_[i] = static_cast<float>(2 * random.uniform() - 1);
      y_[i] = 3 * x_[i] - 1 + static_cast<float>(0.1 * random.normal());
    }
  }

  /// Adds the gradient of sample `i`'s squared error to `gradient`; returns the squared error.
  double add_gradient(std::span<const float> line, std::uint64_t i, std::span<float> gradient) const {
    auto error = line[0] * x_[i] + line[1] - y_[i];
    gradient[0] += 2 * error * x_[i];
    gradient[1] += 2 * error;
    return error * error;
  }

  [[nodiscard]] std::uint64_t size() const noexcept { return x_.size(); }

  /// Synthetic data has no bytes to hash, so the number of points and the way they are made identify it.
  [[nodiscard]] std::string fingerprint() const { return "points, first version"; }

 private:
  std::vector<float> x_;
  std::vector<float> y_;
};

inline void descend(std::span<float> line, std::span<const float> gradient, float rate) {
  for (std::size_t i = 0; i < line.size(); ++i)
    line[i] -= rate * gradient[i];
}

/// The training function that most examples share.
inline void train(troupe::train_context& ctx) {
  auto data = points{4096};
  std::vector<float> line(2);
  ctx.state().track("line", line);
  auto rate = ctx.config().value("rate", 0.1f);
  auto plan = troupe::step_plan{.data = data, .batch_samples = 256, .gradient_elements = line.size()};
  ctx.for_each_step(plan, [&](troupe::step& step) {
    for (auto& shard : step.shards())
      for (auto i : shard.samples())
        shard.add("loss", data.add_gradient(line, i, shard.gradient()));
    descend(line, step.all_reduce(), rate);
    step.report({{"loss", step.mean_loss()}, {"slope", line[0]}, {"intercept", line[1]}});
  });
}

} // namespace example

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace troupe::runtime {

/// A curve of any number of values in bounded memory: neighbouring steps share a bucket, which gets wider as the curve
/// gets longer.
class bounded_curve {
 public:
  struct bucket {
    std::uint64_t count = 0;
    double step_sum = 0;
    /// Of the finite values, of which there are `finite`.
    double sum = 0;
    double least = 0;
    double most = 0;
    std::uint64_t finite = 0;

    void add(const bucket& other) noexcept;
    [[nodiscard]] double mean_step() const noexcept { return step_sum / static_cast<double>(count); }
    /// Not a number where no value is finite.
    [[nodiscard]] double mean() const noexcept;
  };

  static constexpr std::size_t most_buckets = 400;

  void add(std::uint64_t step, double value);

  /// By step, in rising order.
  [[nodiscard]] const std::map<std::uint64_t, bucket>& buckets() const noexcept { return buckets_; }

 private:
  std::map<std::uint64_t, bucket> buckets_;
  /// In steps.
  std::uint64_t width_ = 1;
};

} // namespace troupe::runtime

#include "watching/bounded_curve.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace troupe::runtime {

void bounded_curve::bucket::add(const bucket& other) noexcept {
  if (other.finite > 0) {
    least = finite > 0 ? std::min(least, other.least) : other.least;
    most = finite > 0 ? std::max(most, other.most) : other.most;
  }
  count += other.count;
  step_sum += other.step_sum;
  sum += other.sum;
  finite += other.finite;
}

double bounded_curve::bucket::mean() const noexcept {
  return finite > 0 ? sum / static_cast<double>(finite) : std::numeric_limits<double>::quiet_NaN();
}

void bounded_curve::add(std::uint64_t step, double value) {
  const auto is_finite = std::isfinite(value);
  const auto known = is_finite ? value : 0.0;
  buckets_[step / width_].add({1, static_cast<double>(step), known, known, known, is_finite ? 1U : 0U});
  while (buckets_.size() > most_buckets) {
    width_ *= 2;
    for (const auto& [index, each] : std::exchange(buckets_, {}))
      buckets_[index / 2].add(each);
  }
}

} // namespace troupe::runtime

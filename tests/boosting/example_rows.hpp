#pragma once

#include <troupe/data/data_set.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

namespace troupe::testing {

/// Rows of four numbers with 64 values each, fewer than libraries of trees have bins, so that cuts do not depend on how
/// the rows are dealt; and a label that follows from them but for some noise.
inline data::data_set_ptr example_rows(std::uint64_t count, std::uint64_t seed) {
  std::vector<float> x(4 * count);
  std::vector<float> y(count);
  auto state = seed;
  for (std::uint64_t i = 0; i < count; ++i) {
    for (std::uint64_t j = 0; j < 4; ++j) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      x[4 * i + j] = static_cast<float>(state >> 58u) / 4;
    }
    y[i] = std::sin(x[4 * i]) * x[4 * i + 1] + x[4 * i + 2] * x[4 * i + 3] / 16 +
           static_cast<float>(state >> 40u & 255u) / 256;
  }
  return value_or_throw(
      data::make_table({data::make_column("x", std::move(x), {4}), data::make_column("y", std::move(y))}));
}

} // namespace troupe::testing

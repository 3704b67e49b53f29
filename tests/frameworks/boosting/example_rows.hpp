#pragma once

#include <troupe/data/data_set.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {

/// Rows of four numbers with 64 values each, fewer than tree libraries have bins, so that cuts do not depend on the
/// distribution of rows, and a label that follows from them with some noise.
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

/// A label that follows from a category's text: 1 for "ash", 2 for "elm", 3 for "oak". `texts` are the data set's
/// categories in the order of their codes; each occurs `count` times.
inline data::data_set_ptr category_rows(std::vector<std::string> texts, std::uint64_t count) {
  std::vector<std::int64_t> x(texts.size() * count);
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    auto code = i % texts.size();
    x[i] = static_cast<std::int64_t>(code);
    y[i] = texts[code] == "ash" ? 1.0f : texts[code] == "elm" ? 2.0f : 3.0f;
  }
  auto names = std::make_shared<const std::vector<std::string>>(std::move(texts));
  return value_or_throw(data::make_table(
      {data::make_column("x", std::move(x), {}, std::move(names)), data::make_column("y", std::move(y))}));
}

/// Rows of four numbers that rarely repeat, more values than tree libraries have bins, and one of `classes` classes
/// that follows from them with some noise.
inline data::data_set_ptr class_rows(std::uint64_t count, std::uint64_t seed, int classes) {
  std::vector<float> x(4 * count);
  std::vector<float> y(count);
  auto state = seed;
  auto uniform = [&state] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(state >> 40u) / 0x1p24f;
  };
  for (std::uint64_t i = 0; i < count; ++i) {
    for (std::uint64_t j = 0; j < 4; ++j)
      x[4 * i + j] = uniform();
    auto score = x[4 * i] * x[4 * i + 1] + x[4 * i + 2] * x[4 * i + 2] / 2 + uniform() / 8;
    y[i] = std::floor(std::min(score, 0.999f) * static_cast<float>(classes));
  }
  return value_or_throw(
      data::make_table({data::make_column("x", std::move(x), {4}), data::make_column("y", std::move(y))}));
}

} // namespace troupe::testing

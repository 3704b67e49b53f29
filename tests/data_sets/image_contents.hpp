#pragma once

#include <troupe/data/batch.hpp>
#include <troupe/data/data_set.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::testing {

/// The first value of each image, and the labels, if there are any.
struct contents {
  std::vector<int> values;
  std::vector<std::int64_t> labels;
};

inline contents all_of(const data::data_set& set) {
  std::vector<std::uint64_t> samples(set.size());
  for (std::size_t i = 0; i < samples.size(); ++i)
    samples[i] = i;
  data::batch out;
  auto done = set.fetch(samples, out);
  REQUIRE_MESSAGE(done.has_value(), done.error().message);
  contents result;
  for (std::size_t i = 0; i < samples.size(); ++i)
    result.values.push_back(out.values<std::uint8_t>("image")[i * set.columns().front().elements()]);
  if (set.columns().size() == 2) {
    auto labels = out.values<std::int64_t>("label");
    result.labels.assign(labels.begin(), labels.end());
  }
  return result;
}

} // namespace troupe::testing

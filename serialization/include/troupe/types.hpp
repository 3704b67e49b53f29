#pragma once

#include <troupe/inspect.hpp>

#include <compare>
#include <cstdint>
#include <fmt/core.h>
#include <functional>
#include <string>

namespace troupe {

/// An integer or string with a type that says what it counts, so that a rank is not a step. `Tag` is never defined.
template <class Tag, class Rep>
struct strong_id {
  using rep = Rep;

  Rep value{};

  auto operator<=>(const strong_id&) const = default;
};

template <class Inspector, class Tag, class Rep>
bool inspect(Inspector& f, strong_id<Tag, Rep>& x) {
  return f.apply(x.value);
}

/// One training job, from `fit()` to its result; a resumed run has a new id. 32 hexadecimal digits.
using run_id = strong_id<struct run_tag, std::string>;

/// One membership of the communicator. Starts at 1 and grows by one with every change of members.
using generation_id = strong_id<struct generation_tag, std::uint64_t>;

/// One optimizer update, numbered from 1 for the whole life of a run; 0 is the state before the first.
using step_id = strong_id<struct step_tag, std::uint64_t>;

/// A worker's position in one generation, from 0.
using rank_id = strong_id<struct rank_tag, std::uint32_t>;

/// One worker process of a run; never reused within the run.
using worker_id = strong_id<struct worker_tag, std::uint32_t>;

/// A fixed fraction of each step's global batch, from 0 to V - 1.
using shard_id = strong_id<struct shard_tag, std::uint32_t>;

/// The half-open interval of shards that a worker owns in one generation.
struct shard_range {
  std::uint32_t first = 0;
  std::uint32_t last = 0;

  [[nodiscard]] std::uint32_t size() const noexcept { return last - first; }
  [[nodiscard]] bool contains(shard_id id) const noexcept { return id.value >= first && id.value < last; }

  auto operator<=>(const shard_range&) const = default;
};

TROUPE_INSPECT(shard_range, first, last)

} // namespace troupe

template <class Tag, class Rep>
struct std::hash<troupe::strong_id<Tag, Rep>> {
  std::size_t operator()(const troupe::strong_id<Tag, Rep>& x) const noexcept { return std::hash<Rep>{}(x.value); }
};

/// An id prints as its value, with the value's format specification.
template <class Tag, class Rep>
struct fmt::formatter<troupe::strong_id<Tag, Rep>> : fmt::formatter<Rep> {
  template <class Context>
  auto format(const troupe::strong_id<Tag, Rep>& x, Context& context) const {
    return fmt::formatter<Rep>::format(x.value, context);
  }
};

#pragma once

#include <troupe/types.hpp>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::data {

/// One shard of one step.
struct shard_of_step {
  std::uint64_t step = 0;
  std::uint32_t shard = 0;

  auto operator<=>(const shard_of_step&) const = default;
};

/// Guesses which shards a worker will ask for next, from those that it has asked for: the ones of the step before. A
/// wrong guess costs a fetch, and nothing else.
class prefetch_plan {
 public:
  /// `last_step` 0 is no end.
  prefetch_plan(std::uint32_t shards, std::uint64_t last_step) noexcept : shards_(shards), last_step_(last_step) {}

  /// Says what is asked for now.
  void asked(shard_of_step which);

  /// The next `count` after what was asked for last, in their order; fewer at the end.
  [[nodiscard]] std::vector<shard_of_step> next(std::size_t count) const;

 private:
  std::uint32_t shards_;
  std::uint64_t last_step_;
  shard_of_step last_;
  /// The shards of the step that is under way, and of the one before: ascending.
  std::vector<std::uint32_t> current_;
  std::vector<std::uint32_t> owned_;
};

} // namespace troupe::data

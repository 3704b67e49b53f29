#pragma once

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

/// Predicts which shards a worker will request next: those of the previous step. A wrong prediction only costs a fetch.
class prefetch_plan {
 public:
  /// A `last_step` of 0 means no end.
  prefetch_plan(std::uint32_t shards, std::uint64_t last_step) noexcept : shards_(shards), last_step_(last_step) {}

  /// Records a request.
  void asked(shard_of_step which);

  /// The predicted next `count` requests, in order; fewer at the end of the run.
  [[nodiscard]] std::vector<shard_of_step> next(std::size_t count) const;

 private:
  std::uint32_t shards_;
  std::uint64_t last_step_;
  shard_of_step last_;
  /// The shards of the current step and of the previous one, ascending.
  std::vector<std::uint32_t> current_;
  std::vector<std::uint32_t> owned_;
};

} // namespace troupe::data

#pragma once

#include <troupe/train_context.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace troupe::data {

/// Iterates over samples that are distributed over shards, and combines the shards' results: the same bits for any
/// number of workers. Collective: all ranks make the same calls in the same order.
class exact_reduction {
 public:
  /// Adds the values of these samples to `sums`. A shard's samples are consecutive; a shard may have none.
  using contribution = std::function<void(std::span<const std::uint64_t> samples, std::span<double> sums)>;

  exact_reduction() = default;
  exact_reduction(const exact_reduction&) = delete;
  exact_reduction& operator=(const exact_reduction&) = delete;
  virtual ~exact_reduction() = default;

  /// V, the number of shards over which samples are distributed.
  [[nodiscard]] virtual std::uint32_t shards() const noexcept = 0;

  /// The sums over all `samples` samples, along the canonical tree. Throws what `function` throws, and `exception`.
  [[nodiscard]] virtual std::vector<double> sum(std::uint64_t samples, std::size_t number_of_sums,
                                                const contribution& function) = 0;

  /// Reports progress within a shard; called after each batch, so that a long shard is not taken for a hang.
  virtual void heartbeat() noexcept {}

  /// The separate result of each shard that has samples, in order of the shards, for values that cannot be added. A
  /// zero may lose its sign. Costs a sum of shards() times as many numbers.
  [[nodiscard]] std::vector<std::vector<double>> collect(std::uint64_t samples, std::size_t numbers,
                                                         const contribution& function);

  /// The same for bytes of any length. `function` may be called again for the same samples, and must return the same.
  [[nodiscard]] std::vector<std::string>
  collect_bytes(std::uint64_t samples,
                const std::function<std::string(std::span<const std::uint64_t> samples)>& function);
};

/// Over the workers of a run, by `train_context::evaluate`. Before `for_each_step` or in a step's body.
class context_reduction final : public exact_reduction {
 public:
  explicit context_reduction(train_context& ctx) noexcept : ctx_(ctx) {}

  [[nodiscard]] std::uint32_t shards() const noexcept override { return ctx_.shards(); }
  [[nodiscard]] std::vector<double> sum(std::uint64_t samples, std::size_t number_of_sums,
                                        const contribution& function) override;
  void heartbeat() noexcept override { ctx_.heartbeat(); }

 private:
  train_context& ctx_;
};

/// In this thread only, outside of a run: the same result as a run with this number of shards.
class local_reduction final : public exact_reduction {
 public:
  explicit local_reduction(std::uint32_t shards = 8) noexcept : shards_(shards) {}

  [[nodiscard]] std::uint32_t shards() const noexcept override { return shards_; }
  [[nodiscard]] std::vector<double> sum(std::uint64_t samples, std::size_t number_of_sums,
                                        const contribution& function) override;

 private:
  std::uint32_t shards_;
};

} // namespace troupe::data

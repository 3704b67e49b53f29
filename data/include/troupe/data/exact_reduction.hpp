#pragma once

#include <troupe/train_context.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace troupe::data {

/// Goes over samples that are dealt to shards, and brings together what the shards find: the same bits on any number of
/// workers. Collective where there are several: all ranks make the same calls in the same order.
class exact_reduction {
 public:
  /// Adds to `sums` what these samples give. The samples of a shard follow each other; a shard may have none.
  using contribution = std::function<void(std::span<const std::uint64_t> samples, std::span<double> sums)>;

  exact_reduction() = default;
  exact_reduction(const exact_reduction&) = delete;
  exact_reduction& operator=(const exact_reduction&) = delete;
  virtual ~exact_reduction() = default;

  /// V, into which the samples are dealt.
  [[nodiscard]] virtual std::uint32_t shards() const noexcept = 0;

  /// The sums over all of `samples` samples, along the canonical tree. Throws what `function` throws, and `exception`.
  [[nodiscard]] virtual std::vector<double> sum(std::uint64_t samples, std::size_t number_of_sums,
                                                const contribution& function) = 0;

  /// Says that the work on a shard gets on, where that takes long: after each batch of it.
  virtual void heartbeat() noexcept {}

  /// What each shard that has samples has found, in order of the shards, for what is not to be added. A zero may lose
  /// its sign. Costs a sum of shards() times as many numbers.
  [[nodiscard]] std::vector<std::vector<double>> collect(std::uint64_t samples, std::size_t numbers,
                                                         const contribution& function);

  /// The same for bytes of any length. `function` may be called again for the same samples, and gives the same.
  [[nodiscard]] std::vector<std::string>
  collect_bytes(std::uint64_t samples,
                const std::function<std::string(std::span<const std::uint64_t> samples)>& function);
};

/// Over the workers of a run: `train_context::evaluate`. Before `for_each_step` or in a step's body.
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

/// In this thread alone, outside a run: gives what a run with as many shards gives.
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

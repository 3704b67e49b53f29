#pragma once

#include <troupe/types.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

/// A bijection of [0, size) onto itself, keyed by seed and epoch, computed and not stored: a balanced Feistel network
/// of eight rounds over the next even power of two, walked until it lands inside (Black and Rogaway, "Ciphers with
/// arbitrary finite domains", 2002; four applications at most in the mean). The same on all machines: integers only.
class keyed_permutation {
 public:
  keyed_permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch) noexcept;

  /// The image of `index`, which is less than `size`.
  [[nodiscard]] std::uint64_t operator()(std::uint64_t index) const noexcept;

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

 private:
  [[nodiscard]] std::uint64_t encrypt(std::uint64_t x) const noexcept;

  std::uint64_t size_;
  unsigned half_bits_;
  std::uint64_t mask_;
  std::uint64_t keys_[8];
};

/// The samples of each step, and their division into shards. Position p = (k - 1) B + i of the run belongs to epoch
/// p / n and is sample perm(seed, epoch)(p mod n). Batches continue across epochs, so that every epoch has each sample
/// exactly once, and the step number is the only state.
class data_order {
 public:
  /// `samples`, `batch` and `shards` are positive.
  data_order(std::uint64_t samples, std::uint64_t batch, std::uint32_t shards, std::uint64_t seed) noexcept
      : samples_(samples), batch_(batch), shards_(shards), seed_(seed) {}

  /// Writes the samples of one shard of step `step` (from 1) to `out`, in order: positions [floor(vB/V),
  /// floor((v+1)B/V)) of the batch.
  void samples_of(step_id step, shard_id shard, std::vector<std::uint64_t>& out) const;

  /// The epoch of the step's first sample, from 0.
  [[nodiscard]] std::uint64_t epoch_of(step_id step) const noexcept { return (step.value - 1) * batch_ / samples_; }

  [[nodiscard]] std::uint64_t batch_samples() const noexcept { return batch_; }

 private:
  std::uint64_t samples_;
  std::uint64_t batch_;
  std::uint32_t shards_;
  std::uint64_t seed_;
};

/// A digest of samples in the order in which they were drawn. `before` is that of those before them, 0 for none.
[[nodiscard]] std::uint64_t digest_of_samples(std::uint64_t before, std::span<const std::uint64_t> samples) noexcept;

} // namespace troupe

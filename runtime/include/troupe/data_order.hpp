#pragma once

#include <troupe/types.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <variant>
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

/// The ways in which an epoch may order its samples.
namespace shuffle {

/// Every order is possible: reads go to random places of the data set.
struct uniform {
  bool operator==(const uniform&) const = default;
};

/// For data that is slow to read at random places, such as files larger than memory or on spinning disks. The samples
/// are cut into blocks of `block_samples` neighbours. Each epoch shuffles the blocks, puts `window_blocks` of them at a
/// time together, and shuffles the samples of such a window. A batch that is no larger than a window reads from one or
/// two of them. Samples of one block stay in one window, or two neighbouring ones, so the data should not be sorted, or
/// the window be large.
struct blocks {
  /// Positive.
  std::uint64_t block_samples = 1024;
  /// Positive.
  std::uint64_t window_blocks = 16;
  bool operator==(const blocks&) const = default;
};

/// The order of the data set, the same in each epoch.
struct none {
  bool operator==(const none&) const = default;
};

} // namespace shuffle

using sample_order = std::variant<shuffle::uniform, shuffle::blocks, shuffle::none>;

/// Identifies an order and the version of its definition: "blocks of 1024, windows of 16 (1)". Empty for uniform, whose
/// runs are older than the others.
[[nodiscard]] std::string describe(const sample_order& order);

/// The order of the samples of one epoch: a bijection of [0, samples), computed and not stored. The same on all
/// machines.
class epoch_order {
 public:
  /// `samples` is positive, and so are the numbers of `order`.
  epoch_order(std::uint64_t samples, const sample_order& order, std::uint64_t seed, std::uint64_t epoch) noexcept;

  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }

  /// The sample at this place, which is less than `samples`. Keeps the permutation of the last window: used by one
  /// thread at a time.
  [[nodiscard]] std::uint64_t operator()(std::uint64_t place) noexcept;

 private:
  [[nodiscard]] std::uint64_t in_blocks(const shuffle::blocks& how, std::uint64_t place) noexcept;

  std::uint64_t samples_;
  sample_order order_;
  std::uint64_t seed_;
  std::uint64_t epoch_;
  /// Of all samples, or of all full blocks.
  keyed_permutation outer_;
  /// Of the samples of one window.
  keyed_permutation inner_;
  std::uint64_t window_ = 0;
  /// How many full blocks come before the one that is not full.
  std::uint64_t before_short_ = 0;
};

/// The samples of each step, and their division into shards. Position p = (k - 1) B + i of the run belongs to epoch
/// p / n and is the sample at place p mod n of that epoch's order. Batches continue across epochs, so that every epoch
/// has each sample exactly once, and the step number is the only state.
class data_order {
 public:
  /// `samples`, `batch`, `shards` and the numbers of `order` are positive.
  data_order(std::uint64_t samples, std::uint64_t batch, std::uint32_t shards, std::uint64_t seed,
             sample_order order = {}) noexcept
      : samples_(samples), batch_(batch), shards_(shards), seed_(seed), order_(order) {}

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
  sample_order order_;
};

/// A digest of samples in the order in which they were drawn. `before` is that of those before them, 0 for none.
[[nodiscard]] std::uint64_t digest_of_samples(std::uint64_t before, std::span<const std::uint64_t> samples) noexcept;

} // namespace troupe

#pragma once

#include <troupe/data/data_set.hpp>
#include <troupe/train_context.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace troupe::data {

/// What happens where the samples of an epoch do not fill whole batches.
enum class epoch_end : std::uint8_t {
  /// The batch goes on with the next epoch: every epoch has each sample exactly once, and begins anywhere in a batch.
  run_on,
  /// Every epoch begins with a batch; the samples that would not fill one are left out, others in each epoch.
  drop,
  /// Every epoch begins with a batch; the last one is filled up with samples that the epoch has had, others in each.
  repeat,
};

struct loader_options {
  /// B, the samples of every step's global batch.
  std::uint64_t batch_samples = 0;
  epoch_end at_epoch_end = epoch_end::run_on;
  /// How many shards are fetched ahead, on a thread of the loader's own; each takes the memory of its samples. 0 has no
  /// thread.
  std::size_t prefetch_shards = 8;
  /// The last step that is fetched ahead for; 0 takes the run's.
  std::uint64_t last_step = 0;
};

/// Fetches the samples of the shards that are this worker's, and no others; those of the steps to come while the model
/// computes. What a shard consists of is decided by step, shard and seed alone: fetching ahead changes no sample. When
/// shards change hands, what was fetched for them is dropped, and those that came are fetched when they are asked for.
///
///     auto batches = data::loader{ctx, training, {.batch_samples = 64}};
///     ctx.for_each_step(batches.plan(parameters), [&](troupe::step& step) {
///       for (auto& shard : step.shards()) {
///         const auto& batch = batches(step, shard);
///
/// Used from one thread. The data set's `fetch` runs on another.
class loader {
 public:
  /// Throws `exception` (`errc::invalid_argument`) for a data set with fewer samples than a batch, unless they are
  /// repeated.
  loader(const train_context& ctx, data_set_ptr set, loader_options options);

  /// Outside a run: with what a run has for its number of shards, seed and last step (0 for no end).
  loader(data_set_ptr set, loader_options options, std::uint32_t shards, std::uint64_t seed);

  loader(loader&&) noexcept;
  loader& operator=(loader&&) noexcept;
  ~loader();

  /// The samples of one epoch of the plan; with `drop` and `repeat` a multiple of the batch.
  [[nodiscard]] std::uint64_t epoch_samples() const noexcept;

  /// The plan for `for_each_step`: data set and batch. The rest may be set by hand.
  [[nodiscard]] step_plan plan(std::uint64_t gradient_elements) const;

  /// The samples of this shard. Valid until the next call. Throws `exception` for what cannot be fetched, also if that
  /// was tried ahead.
  [[nodiscard]] const batch& operator()(const step& step, const shard& shard);

  /// The same by numbers. `samples` are the shard's own, as the plan's data order names them.
  [[nodiscard]] expected<const batch*> fetch(step_id step, shard_id shard, std::span<const std::uint64_t> samples);

  /// How many shards were there, or under way, when they were asked for, and how many were not.
  struct counts {
    std::uint64_t ahead = 0;
    std::uint64_t late = 0;
  };
  [[nodiscard]] counts fetched() const noexcept;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::data

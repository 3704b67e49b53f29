#pragma once

#include <troupe/data/data_set.hpp>
#include <troupe/data_order.hpp>
#include <troupe/train_context.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace troupe::data {

/// What to do if the samples of an epoch do not fill whole batches.
enum class epoch_end : std::uint8_t {
  /// The batch continues with the next epoch: every epoch has each sample exactly once, and may begin within a batch.
  run_on,
  /// Every epoch begins with a batch; samples that do not fill one are left out, different ones in each epoch; with
  /// `shuffle::none` always the last ones.
  drop,
  /// Every epoch begins with a batch; the last one is filled with repeated samples, different ones in each epoch.
  repeat,
};

struct loader_options {
  /// B, the samples of every step's global batch.
  std::uint64_t batch_samples = 0;
  epoch_end at_epoch_end = epoch_end::run_on;
  /// The order of an epoch's samples. `shuffle::blocks` reads files larger than memory almost in order.
  sample_order order = shuffle::uniform{};
  /// How many shards to fetch ahead, on threads of the loader; each takes the memory of its samples. 0 starts no
  /// thread.
  std::size_t prefetch_shards = 8;
  /// How many threads fetch ahead, each one shard at a time; more than `prefetch_shards` have nothing to do, and are
  /// not started. Several are worth their processors where fetching is slower than training, as with images. Samples
  /// and their order are the same for any number.
  std::size_t threads = 1;
  /// The last step to fetch ahead for; 0 means the run's.
  std::uint64_t last_step = 0;
};

/// Fetches the samples of this worker's shards, and no others; while the model computes, those of the next steps. Step,
/// shard and seed alone decide which samples a shard has, so fetching ahead does not change them. If shards move to
/// another worker, their prefetched samples are dropped; new shards are fetched when they are requested.
///
///     auto batches = data::loader{ctx, training, {.batch_samples = 64}};
///     ctx.for_each_step(batches.plan(parameters), [&](troupe::step& step) {
///       for (auto& shard : step.shards()) {
///         const auto& batch = batches(step, shard);
///
/// Used from one thread. The data set's `fetch` runs on `loader_options::threads` others, and on this one for a shard
/// that was not fetched ahead.
class loader {
 public:
  /// Throws `exception` (`errc::invalid_argument`) if the data set is smaller than a batch, unless samples are
  /// repeated, for no threads, and for an order in blocks of 0.
  loader(const train_context& ctx, data_set_ptr set, loader_options options);

  /// For use outside of a run, with the values that a run provides (a last step of 0 means no end).
  loader(data_set_ptr set, loader_options options, std::uint32_t shards, std::uint64_t seed);

  loader(loader&&) noexcept;
  loader& operator=(loader&&) noexcept;
  ~loader();

  /// The samples of one epoch of the plan; a multiple of the batch for `drop` and `repeat`.
  [[nodiscard]] std::uint64_t epoch_samples() const noexcept;

  /// The plan for `for_each_step`: data set and batch. The caller may set the other fields.
  [[nodiscard]] step_plan plan(std::uint64_t gradient_elements = 0) const;

  /// The samples of this shard. Valid until the next call. Throws `exception` if fetching fails, also if it failed
  /// ahead.
  [[nodiscard]] const batch& operator()(const basic_step& step, const basic_shard& shard);

  /// The same by numbers. `samples` are the shard's samples in the plan's data order.
  [[nodiscard]] expected<const batch*> fetch(step_id step, shard_id shard, std::span<const std::uint64_t> samples);

  /// How many requested shards had been prefetched or were being fetched (`ahead`), and how many had not (`late`).
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

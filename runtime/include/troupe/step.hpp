#pragma once

#include <troupe/data_order.hpp>
#include <troupe/device_span.hpp>
#include <troupe/metrics.hpp>
#include <troupe/random.hpp>
#include <troupe/types.hpp>

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// The input of `train_context::for_each_step`, and the objects that it passes to the training function.
namespace troupe {

/// A data set of data/, or anything else that knows its number of samples and a hash over all of them.
template <class T>
concept fingerprinted_data = requires(const T& data) {
  { data.size() } -> std::convertible_to<std::uint64_t>;
  { data.fingerprint() } -> std::convertible_to<std::string>;
};

/// The runtime's description of the training data. Derived from a data set, or written by hand:
/// `{points.size(), "points, first version"}`.
struct data_description {
  data_description() = default;
  data_description(std::uint64_t samples, std::string fingerprint)
      : samples(samples), fingerprint(std::move(fingerprint)) {}
  data_description(const fingerprinted_data auto& set) : samples(set.size()), fingerprint(set.fingerprint()) {}

  std::uint64_t samples = 0;
  /// Equal for equal data, different for any other: a hash over all of it.
  std::string fingerprint;
};

/// The plan of `for_each_step`. Must be equal on all workers.
struct step_plan {
  /// A data set, or its description.
  data_description data;
  /// B, the samples of every step's global batch.
  std::uint64_t batch_samples = 0;
  /// The order of an epoch's samples.
  sample_order order = shuffle::uniform{};
  /// The last step's number; a resumed run continues up to it. 0: the run's own (`run_config::steps`).
  std::uint64_t steps = 0;
  /// The length of the gradient, in f32 elements.
  std::uint64_t gradient_elements = 0;
  /// Sums over samples that are reduced with the gradient.
  std::vector<std::string> metrics = {"loss"};
  /// Gradients longer than this are reduced in parts of about this size, last part first, each as soon as all workers
  /// have marked it ready (`shard::mark_ready`). Does not change the result.
  std::uint64_t bucket_bytes = std::uint64_t{25} << 20;
};

/// A plan whose gradient and metrics lie in the memory of the worker's GPU. They are written by work on
/// `train_context::gpu_stream`, and reduced there. Its steps are `device_step`.
class device_plan {
 public:
  explicit device_plan(step_plan plan) : plan_(std::move(plan)) {}
  [[nodiscard]] const step_plan& plan() const noexcept { return plan_; }

 private:
  step_plan plan_;
};

class step_driver;

/// The common part of shards of host and device plans.
class basic_shard {
 public:
  [[nodiscard]] shard_id id() const noexcept { return id_; }

  /// The samples that it consists of, as indices into the data set. Valid until the next shard is taken.
  [[nodiscard]] std::span<const std::uint64_t> samples() const noexcept { return samples_; }

  /// Random numbers for this step and shard; `index` tells several streams apart.
  [[nodiscard]] random_stream random(std::uint32_t index = 0) const noexcept;

  /// Marks `count` gradient elements from `first` as final. On the worker's last shard, their reduction starts at once
  /// if everything behind them is final too, as in a backward pass. Mark each element at most once; the rest is final
  /// at `all_reduce`. On a GPU, work that is already on the stream counts as done. Throws `exception` for elements out
  /// of range.
  void mark_ready(std::uint64_t first, std::uint64_t count);

 protected:
  friend class step_driver;

  basic_shard() = default;
  ~basic_shard() = default;

  step_driver* driver_ = nullptr;
  shard_id id_;
  std::span<const std::uint64_t> samples_;
};

/// One logical shard of one step, while its worker computes it.
class shard : public basic_shard {
 public:
  /// Add the gradient, summed over the shard's samples, here. Zeros at first, aligned to 64 bytes. Valid until the next
  /// shard is taken.
  [[nodiscard]] std::span<float> gradient() const noexcept { return gradient_; }

  /// Adds a gradient, summed over the shard's samples, from other memory. Throws `exception` for another length.
  void contribute(std::span<const float> gradient);

  /// Adds to a metric's sum over samples. Throws `exception` for a name that the plan does not have.
  void add(std::string_view metric, double sum);

 private:
  friend class step_driver;

  std::span<float> gradient_;
  std::span<double> metrics_;
};

/// The same on a GPU.
class device_shard : public basic_shard {
 public:
  /// Work on the context's stream adds the gradient, summed over the shard's samples, here. Zeros at first, aligned to
  /// 256 bytes. Valid until the next shard is taken.
  [[nodiscard]] device_span<float> gradient() const noexcept { return gradient_; }

  /// Work on the stream adds a metric's sum over samples here: one element. Throws `exception` for a name that the plan
  /// does not have.
  [[nodiscard]] device_span<double> metric(std::string_view name) const;

 private:
  friend class step_driver;

  device_span<float> gradient_;
  device_span<double> metrics_;
};

/// This worker's shards of a step, in order; then, with `run_config::verify_determinism`, possibly one shard that is
/// computed a second time.
template <class Shard>
class basic_shard_list {
 public:
  class iterator {
   public:
    iterator(basic_shard_list* list, std::uint32_t place) : list_(list), place_(place) {}
    Shard& operator*() const { return list_->take(place_); }
    iterator& operator++() {
      ++place_;
      return *this;
    }
    bool operator==(const iterator& other) const noexcept { return place_ == other.place_; }

   private:
    basic_shard_list* list_;
    std::uint32_t place_;
  };

  explicit basic_shard_list(step_driver& driver) : driver_(&driver) {}

  [[nodiscard]] iterator begin() noexcept { return {this, 0}; }
  [[nodiscard]] iterator end() noexcept { return {this, size()}; }
  [[nodiscard]] std::uint32_t size() const noexcept;

 private:
  Shard& take(std::uint32_t place);

  step_driver* driver_;
  Shard current_;
};

using shard_list = basic_shard_list<shard>;
using device_shard_list = basic_shard_list<device_shard>;

/// The common part of steps of host and device plans.
class basic_step {
 public:
  basic_step(const basic_step&) = delete;
  basic_step& operator=(const basic_step&) = delete;

  /// From 1 for the whole life of the run. Schedules are functions of it.
  [[nodiscard]] std::uint64_t number() const noexcept { return id().value; }
  [[nodiscard]] step_id id() const noexcept;
  [[nodiscard]] std::uint64_t batch_samples() const noexcept;
  /// The pass over the data that the step's first sample belongs to, from 0.
  [[nodiscard]] std::uint64_t epoch() const noexcept;
  /// Whether it is the plan's last.
  [[nodiscard]] bool last() const noexcept;

  /// After `all_reduce`: a metric's mean over the global batch, the same on every worker.
  [[nodiscard]] double mean(std::string_view metric) const;
  [[nodiscard]] double mean_loss() const { return mean("loss"); }

  /// Reports metrics of this rank and step. Pushed: never waits.
  void report(metric_map values);

  /// After `all_reduce`: completes the run with this step, as if it were its last. A checkpoint is taken, and neither a
  /// later loop nor a run resumed from there does another step. Every rank must decide alike, so use values that are
  /// equal on all: means, evaluations, tracked state. A different decision ends the run with `errc::mismatch`, naming
  /// ranks. Throws `exception` before `all_reduce`.
  void finish();

 protected:
  explicit basic_step(step_driver& driver) : driver_(&driver) {}
  ~basic_step() = default;

  step_driver* driver_;
};

/// One optimizer update. The body first computes each of `shards()`, reading tracked state and writing contributions
/// only; then calls `all_reduce()`; then applies the result to the tracked state. A body that keeps to that can be
/// repeated without a trace.
class step : public basic_step {
 public:
  explicit step(step_driver& driver) : basic_step(driver), shards_(driver) {}

  [[nodiscard]] shard_list& shards() noexcept { return shards_; }

  /// The gradient's mean over the global batch: the same bits on every worker. Returns once every worker has it. Valid
  /// until the body returns. Call it exactly once, after all shards. If a member is lost, it may return late, or leave
  /// the body with an exception of no standard type so that the body runs again: do not swallow that in `catch (...)`.
  /// Throws `exception`: `errc::user_error` if the body has written tracked state before, and if the run cannot
  /// continue.
  std::span<const float> all_reduce();

 private:
  shard_list shards_;
};

/// The same on a GPU: for work on the context's stream.
class device_step : public basic_step {
 public:
  explicit device_step(step_driver& driver) : basic_step(driver), shards_(driver) {}

  [[nodiscard]] device_shard_list& shards() noexcept { return shards_; }

  /// As `step::all_reduce`. The GPU reduces parts that are ready while the backward pass continues.
  device_span<const float> all_reduce();

 private:
  device_shard_list shards_;
};

extern template class basic_shard_list<shard>;
extern template class basic_shard_list<device_shard>;

} // namespace troupe

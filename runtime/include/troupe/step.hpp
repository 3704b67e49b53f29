#pragma once

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

/// What `train_context::for_each_step` is given, and what it hands to the training function.
namespace troupe {

/// A data set of data/, or anything else that knows its number of samples and a hash over all of them.
template <class T>
concept fingerprinted_data = requires(const T& data) {
  { data.size() } -> std::convertible_to<std::uint64_t>;
  { data.fingerprint() } -> std::convertible_to<std::string>;
};

/// What the training function trains on, as far as the runtime has to know it. Derived from a data set, or written by
/// hand: `{points.size(), "points, first version"}`.
struct data_description {
  data_description() = default;
  data_description(std::uint64_t samples, std::string fingerprint)
      : samples(samples), fingerprint(std::move(fingerprint)) {}
  data_description(const fingerprinted_data auto& set) : samples(set.size()), fingerprint(set.fingerprint()) {}

  std::uint64_t samples = 0;
  /// Equal for equal data, different for any other: a hash over all of it.
  std::string fingerprint;
};

/// What `for_each_step` is to do. All workers must say the same.
struct step_plan {
  /// A data set, or its description.
  data_description data;
  /// B, the samples of every step's global batch.
  std::uint64_t batch_samples = 0;
  /// The last step's number; a resumed run goes on to it. 0 takes the run's own (`run_config::steps`).
  std::uint64_t steps = 0;
  /// The length of the gradient, in f32 elements.
  std::uint64_t gradient_elements = 0;
  /// Sums over samples that ride along with the gradient.
  std::vector<std::string> metrics = {"loss"};
  /// A longer gradient is reduced in parts of about this size, from its end to its begin, each as soon as all workers
  /// have said that it is complete (`shard::mark_ready`). Does not change the result.
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

/// What shards of host and device plans have in common.
class basic_shard {
 public:
  [[nodiscard]] shard_id id() const noexcept { return id_; }

  /// The samples that it consists of, as indices into the data set. Valid until the next shard is taken.
  [[nodiscard]] std::span<const std::uint64_t> samples() const noexcept { return samples_; }

  /// Random numbers for this step and shard; `index` tells several streams apart.
  [[nodiscard]] random_stream random(std::uint32_t index = 0) const noexcept;

  /// Says that `count` elements of this shard's gradient, from element `first`, are written to the end. On the worker's
  /// last shard their reduction begins while the rest is computed, if they are the end of the gradient or what follows
  /// them is complete: as a backward pass goes. Each element once; what is left out counts as complete at
  /// `all_reduce`. On a GPU: written by what stands on the stream. Throws `exception` for elements that there are not.
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
  /// Where the gradient, summed over the shard's samples, is to be added. Zeros at first, on a 64-byte boundary. Valid
  /// until the next shard is taken.
  [[nodiscard]] std::span<float> gradient() const noexcept { return gradient_; }

  /// Adds a gradient, summed over the shard's samples, that lies elsewhere. Throws `exception` for another length.
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
  /// Where work on the context's stream adds the gradient, summed over the shard's samples. Zeros at first, on a
  /// 256-byte boundary. Valid until the next shard is taken.
  [[nodiscard]] device_span<float> gradient() const noexcept { return gradient_; }

  /// Where work on the stream adds a metric's sum over samples: one element. Throws `exception` for a name that the
  /// plan does not have.
  [[nodiscard]] device_span<double> metric(std::string_view name) const;

 private:
  friend class step_driver;

  device_span<float> gradient_;
  device_span<double> metrics_;
};

/// The shards of a step that are this worker's now, one after the other; behind them, where the run verifies its
/// determinism, one that is computed a second time.
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

/// What steps of host and device plans have in common.
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

  /// After `all_reduce`: the run is complete with this step, as if it were its last. Its checkpoint is taken, no later
  /// loop does a step, and a run that is resumed from there does none, either. Every rank has to decide the same, so
  /// decide by what is the same on all: means, evaluations, tracked state. A decision that differs ends the run with
  /// `errc::mismatch`, naming ranks. Throws `exception` before `all_reduce`.
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
  /// until the body returns. To be called exactly once, after all shards. When the group loses a member, it returns
  /// later, or leaves the body by an exception of no standard type, and the body is run again: do not keep what
  /// `catch (...)` catches. Throws `exception`: `errc::user_error` when the body has written tracked state before, and
  /// where the run cannot go on.
  std::span<const float> all_reduce();

 private:
  shard_list shards_;
};

/// The same on a GPU: for work on the context's stream.
class device_step : public basic_step {
 public:
  explicit device_step(step_driver& driver) : basic_step(driver), shards_(driver) {}

  [[nodiscard]] device_shard_list& shards() noexcept { return shards_; }

  /// As `step::all_reduce`. The sums are reduced on the GPU, while the rest of the backward pass goes on.
  device_span<const float> all_reduce();

 private:
  device_shard_list shards_;
};

extern template class basic_shard_list<shard>;
extern template class basic_shard_list<device_shard>;

} // namespace troupe

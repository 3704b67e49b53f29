#pragma once

#include <troupe/collectives/device.hpp>
#include <troupe/error.hpp>
#include <troupe/metrics.hpp>
#include <troupe/random.hpp>
#include <troupe/tracked_state.hpp>
#include <troupe/types.hpp>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

/// How an operation combines the ranks' values.
enum class reduction : std::uint8_t { sum, mean, min, max, product };

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
  /// The gradient and the metrics are written by work on `train_context::gpu_stream`, in memory of the worker's GPU
  /// (`shard::gpu_gradient`, `shard::gpu_metric`), and reduced there (`step::all_reduce_on_gpu`).
  bool on_gpu = false;
};

/// A tensor among those that a gradient consists of.
struct gradient_tensor {
  std::string name;
  /// In elements of the gradient.
  std::uint64_t first = 0;
  std::uint64_t elements = 0;
};

class step;
class step_driver;

/// One logical shard of one step, while its worker computes it.
class shard {
 public:
  [[nodiscard]] shard_id id() const noexcept { return id_; }

  /// The samples that it consists of, as indices into the data set. Valid until the next shard is taken.
  [[nodiscard]] std::span<const std::uint64_t> samples() const noexcept { return samples_; }

  /// Random numbers for this step and shard; `index` tells several streams apart.
  [[nodiscard]] random_stream random(std::uint32_t index = 0) const noexcept;

  /// Where the gradient, summed over the shard's samples, is to be added. Zeros at first, on a 64-byte boundary. Valid
  /// until the next shard is taken.
  [[nodiscard]] std::span<float> gradient() const noexcept { return gradient_; }

  /// The same of a plan that is `on_gpu`: addresses of the GPU, on a 256-byte boundary, for work on the context's
  /// stream. `gradient()` is empty then.
  [[nodiscard]] std::span<float> gpu_gradient() const noexcept { return gpu_gradient_; }

  /// Where a metric's sum over samples is to be added, in the GPU's memory. Throws `exception` for a name that the plan
  /// does not have, and where the plan is not `on_gpu`.
  [[nodiscard]] double* gpu_metric(std::string_view metric) const;

  /// Adds a gradient, summed over the shard's samples, that lies elsewhere. Throws `exception` for another length.
  void contribute(std::span<const float> gradient);

  /// Says that `count` elements of this shard's gradient, from element `first`, are written to the end. On the worker's
  /// last shard their reduction begins while the rest is computed, if they are the end of the gradient or what follows
  /// them is complete: as a backward pass goes. Each element once; what is left out counts as complete at
  /// `all_reduce`. On a GPU: written by what stands on the stream. Throws `exception` for elements that there are not.
  void mark_ready(std::uint64_t first, std::uint64_t count);

  /// Adds to a metric's sum over samples. Throws `exception` for a name that the plan does not have, and where the plan
  /// is `on_gpu`.
  void add(std::string_view metric, double sum);

 private:
  friend class step_driver;

  step* owner_ = nullptr;
  shard_id id_;
  std::span<const std::uint64_t> samples_;
  std::span<float> gradient_;
  std::span<float> gpu_gradient_;
  /// Of the plan's metrics; addresses of the GPU where the plan is `on_gpu`.
  std::span<double> metrics_;
};

/// The shards of a step that are this worker's now, one after the other; behind them, where the run verifies its
/// determinism, one that is computed a second time.
class shard_list {
 public:
  class iterator {
   public:
    iterator(shard_list* list, std::uint32_t place) : list_(list), place_(place) {}
    shard& operator*() const { return list_->take(place_); }
    iterator& operator++() {
      ++place_;
      return *this;
    }
    bool operator==(const iterator& other) const noexcept { return place_ == other.place_; }

   private:
    shard_list* list_;
    std::uint32_t place_;
  };

  [[nodiscard]] iterator begin() noexcept { return {this, 0}; }
  [[nodiscard]] iterator end() noexcept { return {this, size()}; }
  [[nodiscard]] std::uint32_t size() const noexcept { return range_.size() + (again_ ? 1 : 0); }

 private:
  friend class step_driver;

  shard& take(std::uint32_t place);

  step* owner_ = nullptr;
  shard_range range_;
  /// Computed here to be compared only (`run_config::verify_determinism`), after the others.
  std::optional<shard_id> again_;
  shard current_;
};

/// One optimizer update. The body first computes each of `shards()`, reading tracked state and writing contributions
/// only; then calls `all_reduce()`; then applies the result to the tracked state. A body that keeps to that can be
/// repeated without a trace.
class step {
 public:
  /// From 1 for the whole life of the run. Schedules are functions of it.
  [[nodiscard]] std::uint64_t number() const noexcept { return id_.value; }
  [[nodiscard]] step_id id() const noexcept { return id_; }
  [[nodiscard]] std::uint64_t batch_samples() const noexcept;
  /// The pass over the data that the step's first sample belongs to, from 0.
  [[nodiscard]] std::uint64_t epoch() const noexcept;
  /// Whether it is the plan's last.
  [[nodiscard]] bool last() const noexcept;

  [[nodiscard]] shard_list& shards() noexcept { return shards_; }

  /// The gradient's mean over the global batch: the same bits on every worker. Returns once every worker has it. Valid
  /// until the body returns. To be called exactly once, after all shards. When the group loses a member, it returns
  /// later, or leaves the body by an exception of no standard type, and the body is run again: do not keep what
  /// `catch (...)` catches. Throws `exception`: `errc::user_error` when the body has written tracked state before, and
  /// where the run cannot go on.
  std::span<const float> all_reduce();

  /// The same of a plan that is `on_gpu`: addresses of the GPU, for work on the context's stream. The sums are reduced
  /// on the GPU, while the rest of the backward pass goes on.
  std::span<const float> all_reduce_on_gpu();

  /// After `all_reduce`: a metric's mean over the global batch, the same on every worker.
  [[nodiscard]] double mean(std::string_view metric) const;
  [[nodiscard]] double mean_loss() const { return mean("loss"); }

  /// Reports metrics of this rank and step. Pushed: never waits.
  void report(metric_map values);

 private:
  friend class shard;
  friend class shard_list;
  friend class step_driver;

  explicit step(step_driver& driver) : driver_(&driver) {}

  step_driver* driver_;
  step_id id_;
  shard_list shards_;
};

/// Whether a report in a custom loop takes a checkpoint with it.
enum class save_checkpoint : std::uint8_t { no, yes };

/// What a training function is given: who and where it is, its configuration, state, steps and collectives. Used from
/// the training thread only, but for `stop_requested` and `heartbeat`.
class train_context {
 public:
  class impl;

  explicit train_context(impl& self) noexcept : impl_(&self) {}
  train_context(const train_context&) = delete;
  train_context& operator=(const train_context&) = delete;

  /// Rank and sizes change with the group, at the end of a step. A joiner's are preliminary until its first step.
  [[nodiscard]] std::uint32_t rank() const noexcept;
  [[nodiscard]] std::uint32_t world_size() const noexcept;
  /// Among the workers of this host.
  [[nodiscard]] std::uint32_t local_rank() const noexcept;
  [[nodiscard]] std::uint32_t local_world_size() const noexcept;
  [[nodiscard]] std::uint32_t node_rank() const noexcept;
  /// Of the group of workers: grows with each change of members.
  [[nodiscard]] std::uint64_t generation() const noexcept;
  /// Which start of the run this is, from 1: it begins again from a checkpoint when nobody is left.
  [[nodiscard]] std::uint32_t attempt() const noexcept;
  /// Why the group was formed, for people; empty for the first.
  [[nodiscard]] const std::string& generation_reason() const noexcept;
  /// Says that the training function gets on, where it computes or waits for long without a call that tells: it is not
  /// taken for hung then (`failure_config::replace_after`). From any thread; in a call of this context, which is
  /// watched by itself, it says nothing.
  void heartbeat() const noexcept;
  [[nodiscard]] const std::string& run_name() const noexcept;
  [[nodiscard]] const std::filesystem::path& run_directory() const noexcept;
  /// V, the logical shards that every step's batch is cut into (`scaling_config::shards`).
  [[nodiscard]] std::uint32_t shards() const noexcept;
  /// What to compute on: "cpu", or "cuda:0", the first of the GPUs that the node lets this worker's process see.
  [[nodiscard]] std::string device() const;
  [[nodiscard]] std::uint64_t seed() const noexcept;
  /// The trainer's `config`.
  [[nodiscard]] const nlohmann::json& config() const noexcept;
  /// The trainer's `options`.
  [[nodiscard]] const nlohmann::json& options() const noexcept;
  /// The trainer's number of steps; 0 when it is left to the training function.
  [[nodiscard]] std::uint64_t steps() const noexcept;
  /// Whether the run is to end before its last step. `for_each_step` looks itself. From any thread.
  [[nodiscard]] bool stop_requested() const noexcept;
  /// The step that the restored state had; 0 for a fresh start.
  [[nodiscard]] std::uint64_t restored_step() const noexcept;

  [[nodiscard]] tracked_state& state() noexcept;

  /// Says what tensors the gradient consists of, for messages (`run_config::verify_determinism`). `libtorch::replica`
  /// does.
  void name_gradient(std::vector<gradient_tensor> tensors);

  // -- the GPU of a worker that has one (`scaling_config::use_gpu`). They throw `exception` where it has none, where
  // the program was built without CUDA or there is no driver, and with what the driver fails with.

  /// The first of the GPUs that this process sees. Opened by the first call.
  [[nodiscard]] const std::shared_ptr<collectives::device>& gpu();

  /// The stream on which the training function works: what it writes there to contributions and tracked tensors is what
  /// the runtime waits for, reduces, compares and saves. Work on other streams is to be joined to it by events.
  [[nodiscard]] const collectives::device_stream& gpu_stream();

  /// Tracks memory of the GPU, as `tracked_state::track` does host memory: restored when this returns, copied through
  /// pinned memory on a stream of its own. `values` are addresses of the GPU.
  template <class T>
  void track_on_gpu(std::string name, std::span<T> values, std::vector<std::uint64_t> shape = {}) {
    if (shape.empty())
      shape = {values.size()};
    track_on_gpu(std::move(name), dtype_of<T>, std::move(shape), std::as_writable_bytes(values));
  }

  /// Random numbers for what is drawn once, the same on every rank.
  [[nodiscard]] random_stream random(std::string_view name) const noexcept;

  /// Runs `body` for every step that is still to be done, takes checkpoints between steps, and returns after the last,
  /// or when a stop was requested: loops after that one do no step. Throws `exception` when the run cannot go on, and
  /// whatever `body` throws.
  void for_each_step(const step_plan& plan, const std::function<void(step&)>& body);

  /// Evaluates `samples` samples, split over the workers: `function` adds to `sums` what the samples of `indices` give.
  /// Returns the sums over all samples, the same bits on every number of workers. Every rank calls it.
  [[nodiscard]] std::vector<double>
  evaluate(std::uint64_t samples, std::size_t number_of_sums,
           const std::function<void(std::span<const std::uint64_t> indices, std::span<double> sums)>& function);

  // -- a custom loop: for code that has its own loop. Sums over ranks are outside the promise of equal bits. All
  // throw `exception`. -----

  template <class T>
  void all_reduce(std::span<T> data, reduction op = reduction::sum) {
    all_reduce(dtype_of<T>, op, std::as_writable_bytes(data));
  }

  template <class T>
  void reduce_scatter(std::span<const T> input, std::span<T> output, reduction op = reduction::sum) {
    reduce_scatter(dtype_of<T>, op, std::as_bytes(input), std::as_writable_bytes(output));
  }

  template <class T>
  void all_gather(std::span<const T> input, std::span<T> output) {
    all_gather(std::as_bytes(input), std::as_writable_bytes(output));
  }

  /// Both have one block for each rank: my block r of `input` becomes r's block `rank()` of `output`.
  template <class T>
  void all_to_all(std::span<const T> input, std::span<T> output) {
    all_to_all(std::as_bytes(input), std::as_writable_bytes(output));
  }

  template <class T>
  void broadcast(std::span<T> data, std::uint32_t root = 0) {
    broadcast(std::as_writable_bytes(data), root);
  }

  void barrier();

  /// Reports metrics of this rank. Each call is a step of a custom loop. With a checkpoint, every rank calls it; it
  /// returns once the tracked state is copied. As many as `checkpoint_config::max_in_flight` are then on their way, and
  /// another is left out. The checkpoint of step `steps()`, and any after a stop was asked for, is always taken and
  /// waited for; what is in flight is durable when the training function has returned.
  void report(metric_map values, save_checkpoint checkpoint = save_checkpoint::no);

 private:
  void track_on_gpu(std::string name, dtype type, std::vector<std::uint64_t> shape, std::span<std::byte> memory);
  void all_reduce(dtype type, reduction op, std::span<std::byte> data);
  void reduce_scatter(dtype type, reduction op, std::span<const std::byte> input, std::span<std::byte> output);
  void all_gather(std::span<const std::byte> input, std::span<std::byte> output);
  void all_to_all(std::span<const std::byte> input, std::span<std::byte> output);
  void broadcast(std::span<std::byte> data, std::uint32_t root);

  impl* impl_;
};

} // namespace troupe

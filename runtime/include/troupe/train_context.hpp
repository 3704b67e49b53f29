#pragma once

#include <troupe/collectives/device.hpp>
#include <troupe/device_span.hpp>
#include <troupe/error.hpp>
#include <troupe/metrics.hpp>
#include <troupe/random.hpp>
#include <troupe/step.hpp>
#include <troupe/tracked_state.hpp>
#include <troupe/types.hpp>

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

/// A tensor among those that a gradient consists of.
struct gradient_tensor {
  std::string name;
  /// In elements of the gradient.
  std::uint64_t first = 0;
  std::uint64_t elements = 0;
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
  /// pinned memory on a stream of its own.
  template <class T>
  void track_on_gpu(std::string name, device_span<T> values, std::vector<std::uint64_t> shape = {}) {
    if (shape.empty())
      shape = {values.size()};
    track_on_gpu(std::move(name), dtype_of<T>, std::move(shape), values.template as<std::byte>());
  }

  /// Random numbers for what is drawn once, the same on every rank.
  [[nodiscard]] random_stream random(std::string_view name) const noexcept;

  /// Runs `body` for every step that is still to be done, takes checkpoints between steps, and returns after the last,
  /// or when a stop was requested: loops after that one do no step. Throws `exception` when the run cannot go on, and
  /// whatever `body` throws.
  void for_each_step(const step_plan& plan, const std::function<void(step&)>& body);
  void for_each_step(const device_plan& plan, const std::function<void(device_step&)>& body);

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
  void track_on_gpu(std::string name, dtype type, std::vector<std::uint64_t> shape, device_span<std::byte> memory);
  void all_reduce(dtype type, reduction op, std::span<std::byte> data);
  void reduce_scatter(dtype type, reduction op, std::span<const std::byte> input, std::span<std::byte> output);
  void all_gather(std::span<const std::byte> input, std::span<std::byte> output);
  void all_to_all(std::span<const std::byte> input, std::span<std::byte> output);
  void broadcast(std::span<std::byte> data, std::uint32_t root);

  impl* impl_;
};

} // namespace troupe

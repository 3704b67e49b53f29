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
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

/// How an operation combines the ranks' values.
enum class reduction : std::uint8_t { sum, mean, min, max, product };

/// One tensor of a gradient.
struct gradient_tensor {
  std::string name;
  /// In elements of the gradient.
  std::uint64_t first = 0;
  std::uint64_t elements = 0;
};

/// Whether a report in a custom loop takes a checkpoint with it.
enum class save_checkpoint : std::uint8_t { no, yes };

/// The interface of a training function: its rank and place, configuration, state, steps and collectives. Used from the
/// training thread only, except for `stop_requested` and `heartbeat`.
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
  /// How often the run has started, from 1: a run whose workers are all lost restarts from a checkpoint.
  [[nodiscard]] std::uint32_t attempt() const noexcept;
  /// Why the group was formed, for people; empty for the first.
  [[nodiscard]] const std::string& generation_reason() const noexcept;
  /// Tells the runtime that the training function makes progress. Call it during long work in your own code, or the
  /// worker counts as hung (`failure_config::replace_after`). From any thread. No effect inside calls of this context,
  /// which are watched anyway.
  void heartbeat() const noexcept;
  [[nodiscard]] const std::string& run_name() const noexcept;
  [[nodiscard]] const std::filesystem::path& run_directory() const noexcept;
  /// V, the logical shards that every step's batch is cut into (`scaling_config::shards`).
  [[nodiscard]] std::uint32_t shards() const noexcept;
  /// The device to compute on: "cpu", or "cuda:0", the first of the GPUs visible to this worker's process.
  [[nodiscard]] std::string device() const;
  [[nodiscard]] std::uint64_t seed() const noexcept;
  /// The trainer's `config`.
  [[nodiscard]] const nlohmann::json& config() const noexcept;
  /// The trainer's `options`.
  [[nodiscard]] const nlohmann::json& options() const noexcept;
  /// The trainer's number of steps; 0 when it is left to the training function.
  [[nodiscard]] std::uint64_t steps() const noexcept;
  /// Whether the run should stop before its last step. `for_each_step` checks this itself. From any thread.
  [[nodiscard]] bool stop_requested() const noexcept;
  /// Whether this worker's group has lost a member, and what the group computes together will fail. Code that waits for
  /// other workers by means of its own should then end. From any thread.
  [[nodiscard]] bool group_is_lost() const;
  /// The step that the restored state had; 0 for a fresh start.
  [[nodiscard]] std::uint64_t restored_step() const noexcept;

  [[nodiscard]] tracked_state& state() noexcept;

  /// Names the tensors that the gradient consists of, for the error messages of `run_config::verify_determinism`.
  /// `libtorch::replica` calls it.
  void name_gradient(std::vector<gradient_tensor> tensors);

  // -- the GPU of a worker that has one (`scaling_config::use_gpu`). These throw `exception` if it has none, the
  // program was built without CUDA or there is no driver, and with the driver's errors.

  /// The first of the GPUs that this process sees. Opened by the first call.
  [[nodiscard]] const std::shared_ptr<collectives::device>& gpu();

  /// The stream for all work on contributions and tracked tensors. The runtime waits for this stream only: join other
  /// streams to it with events.
  [[nodiscard]] const collectives::device_stream& gpu_stream();

  /// Tracks memory of the GPU, as `tracked_state::track` does host memory: restored when this returns, copied through
  /// pinned memory on a stream of its own.
  template <class T>
  void track_on_gpu(std::string name, device_span<T> values, std::vector<std::uint64_t> shape = {}) {
    if (shape.empty())
      shape = {values.size()};
    track_on_gpu(std::move(name), dtype_of<T>, std::move(shape), values.template as<std::byte>());
  }
  /// The same for elements of a type that is known at run time.
  void track_on_gpu(std::string name, dtype type, std::vector<std::uint64_t> shape, device_span<std::byte> memory);

  /// Random numbers for what the run draws once, the same on every rank.
  [[nodiscard]] random_stream random(std::string_view name) const noexcept;

  /// Runs `body` for every remaining step and takes checkpoints between steps. Returns after the last step or a stop;
  /// after a stop, later loops do nothing. Throws `exception` if the run cannot continue, and the exceptions of `body`.
  void for_each_step(const step_plan& plan, const std::function<void(step&)>& body);
  void for_each_step(const device_plan& plan, const std::function<void(device_step&)>& body);

  /// Evaluates `samples` samples, split over the workers: `function` adds the results of the samples at `indices` to
  /// `sums`. Returns the sums over all samples, the same bits on every number of workers. Every rank calls it.
  [[nodiscard]] std::vector<double>
  evaluate(std::uint64_t samples, std::size_t number_of_sums,
           const std::function<void(std::span<const std::uint64_t> indices, std::span<double> sums)>& function);

  // -- a custom loop: for code that has its own loop. Sums over ranks are outside the promise of equal bits. All throw
  // `exception`; in the body of a step they are refused (`errc::user_error`).

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

  /// `input` and `output` have one block per rank: block r of this rank's `input` becomes block `rank()` of r's
  /// `output`.
  template <class T>
  void all_to_all(std::span<const T> input, std::span<T> output) {
    all_to_all(std::as_bytes(input), std::as_writable_bytes(output));
  }

  template <class T>
  void broadcast(std::span<T> data, std::uint32_t root = 0) {
    broadcast(std::as_writable_bytes(data), root);
  }

  void barrier();

  /// Reports metrics of this rank; each call counts as a step. With a checkpoint every rank must call it: it returns
  /// once the tracked state is copied, and skips the checkpoint if `checkpoint_config::max_in_flight` are being
  /// written. The checkpoint of step `steps()`, and one after a stop request, is always taken and waited for. The run
  /// waits for those in flight after the training function has returned.
  void report(metric_map values, save_checkpoint checkpoint = save_checkpoint::no);

 private:
  void all_reduce(dtype type, reduction op, std::span<std::byte> data);
  void reduce_scatter(dtype type, reduction op, std::span<const std::byte> input, std::span<std::byte> output);
  void all_gather(std::span<const std::byte> input, std::span<std::byte> output);
  void all_to_all(std::span<const std::byte> input, std::span<std::byte> output);
  void broadcast(std::span<std::byte> data, std::uint32_t root);

  impl* impl_;
};

} // namespace troupe

#pragma once

#include <troupe/data/batch.hpp>
#include <troupe/error.hpp>
#include <troupe/framework.hpp>
#include <troupe/inference/predictor.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/train_context.hpp>
#include <troupe/training/loss_scale.hpp>
#include <troupe/training/schedule.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace at {
class Tensor;
}

namespace c10 {
struct Device;
}

namespace torch::nn {
class Module;
}

namespace torch::jit {
struct Module;
}

namespace torch::optim {
class LRScheduler;
class Optimizer;
} // namespace torch::optim

/// Trains models written in LibTorch. This header includes none of LibTorch's.
namespace troupe::libtorch {

/// Options of a worker process; part of the program.
struct framework_options {
  /// Threads of one worker's kernels. Gradients depend on it, so it must be a constant of the program.
  int threads = 1;
};

/// Prepares LibTorch in a worker process: deterministic algorithms, a fixed number of threads, and generators seeded by
/// the run's seed (so that a model made in the training function starts with the same parameters everywhere). Its
/// versions and kernels become part of the numerics fingerprint. The host's first worker warns on standard error if
/// matrix products use the reference BLAS, which is about ten times slower than others, or if OpenBLAS mistakes the
/// processor for an older one.
[[nodiscard]] std::shared_ptr<framework> make_framework(framework_options options = {});

struct replica_options {
  /// Starts the reduction of the gradient while backward is still running. Requires one `backward()` per shard, and
  /// gradients that do not change after it. Does not affect the result.
  bool overlap = true;
  /// Buffers that forward passes change, by the last component of their names; by default those of batch norm. Each
  /// shard's change is a contribution, weighted by its samples; the mean is applied once. Other buffers must not change
  /// before `apply`.
  std::vector<std::string> reduced_buffers = {"running_mean", "running_var", "num_batches_tracked"};
  /// A metric of the plan by whose mean `apply` divides the gradient: with a "tokens" to which every shard adds its
  /// tokens, losses are sums over tokens and the gradient is a mean over tokens. Empty: the mean over samples.
  std::string divide_by;
  /// Scales losses, for gradients that half precision cannot hold: multiply each by `replica::loss_scale` before
  /// `backward`. bf16 has the exponents of f32 and needs none.
  std::optional<training::loss_scale_options> loss_scale;
};

/// This worker's copy of the module and optimizer that the run trains. Parameters, buffers and the optimizer's state
/// are tracked: parameters and buffers under the names of a PyTorch `state_dict`, the optimizer's state as
/// "optimizer/PARAMETER/STATE", and the numbers among its options as "optimizer/options". Contiguous tensors are
/// tracked in place, on the CPU or the GPU; for others (channels last) a copy beside them is tracked and updated after
/// each step.
///
///     auto replica = troupe::libtorch::replica{ctx, *model, optimizer};
///     replica.for_each_step(batches.plan(), [&](auto& step) {
///       for (auto& shard : replica.shards(step)) {
///         auto loss = cross_entropy(model->forward(...), ..., torch::kSum);
///         loss.backward();
///         replica.add(shard, "loss", loss);
///       }
///       replica.apply(step);
///
/// A worker that the run assigned a GPU trains there: the module is on `device_of(ctx)`, and as long as the replica
/// exists LibTorch's work of this thread is on `train_context::gpu_stream`. Gradients stay in the GPU's memory.
///
/// Losses are sums over the shard's samples: `apply` divides by the batch. `zero_grad` is not needed, and not allowed
/// before `apply`. Used from the training thread; must not outlive its constructor's arguments.
class replica {
 public:
  /// Creates the optimizer's state, tracks everything, and restores a checkpoint's values. Every trainable parameter
  /// must be f32. Throws `exception`: `errc::invalid_argument` for another type, for an optimizer other than Adam,
  /// AdamW, SGD, RMSprop and Adagrad, for an optimizer's parameter that is not in the module, and if the training
  /// function was not registered with the framework, and for a module that is not on `device_of(ctx)`; and what
  /// `tracked_state::track` throws.
  replica(train_context& ctx, torch::nn::Module& model, torch::optim::Optimizer& optimizer,
          replica_options options = {});
  /// The same for a model from Python: one that `torch.jit.script` or `trace` made and `torch::jit::load` has read.
  /// PyTorch keeps TorchScript, and no longer develops it. Its graphs are run as they are, without optimizations that
  /// begin after some runs, because a new worker would round differently from an old one.
  replica(train_context& ctx, torch::jit::Module& model, torch::optim::Optimizer& optimizer,
          replica_options options = {});
  ~replica();
  replica(replica&&) noexcept;
  replica& operator=(replica&&) noexcept;

  /// Has `apply` call `scheduler.step()` after every `steps` steps, and a resumed run and a joiner begin where it was:
  /// a scheduler that the body calls begins anew there. Before the first step; the scheduler outlives the replica.
  /// Throws `exception` with `errc::user_error` after the first step, and `errc::invalid_argument` if `steps` is 0.
  void schedule(torch::optim::LRScheduler& scheduler, std::uint64_t steps = 1);

  /// Has `apply` set the learning rate of each of the optimizer's groups to the one that the program began with, times
  /// the schedule's factor for the step. Throws `exception` with `errc::user_error` after the first step.
  void schedule(training::schedule factor);

  /// The factor for this step's losses (`replica_options::loss_scale`); 1 without.
  [[nodiscard]] double loss_scale() const noexcept;

  /// For `step_plan::gradient_elements`: parameters, each padded to 64 bytes, and the buffers' changes.
  [[nodiscard]] std::uint64_t gradient_elements() const noexcept;

  /// As `train_context::for_each_step`, whose plan gets `gradient_elements` here. On the CPU `body` takes a
  /// `troupe::step&`, on a GPU a `troupe::device_step&`: write `[&](auto& step)`.
  template <class Body>
  void for_each_step(step_plan plan, const Body& body) {
    plan.gradient_elements = gradient_elements();
    if (is_on_gpu())
      context().for_each_step(device_plan{std::move(plan)}, [&](device_step& step) { body(step); });
    else
      context().for_each_step(plan, [&](step& step) { body(step); });
  }

  /// Whether the module, its gradients and its state are in the memory of a GPU.
  [[nodiscard]] bool is_on_gpu() const noexcept;

  template <class List>
  class shard_sequence;

  /// The step's shards, as `step.shards()`. Accessing a shard seeds the generators by (seed, step, shard), resets
  /// buffers to their state after the last step, and sets the parameters' `.grad` to zeros inside the shard's own
  /// gradient; advancing to the next ends its contribution. Throws `exception` if a tensor or gradient was moved, and
  /// for a second `backward()` while the reduction may be running, and for a `troupe::step` of a module on a GPU.
  [[nodiscard]] shard_sequence<shard_list> shards(step& step);
  [[nodiscard]] shard_sequence<device_shard_list> shards(device_step& step);

  /// Adds to a metric's sum over samples, as `shard.add` does: a tensor of one element. On a GPU it is read there, by
  /// work on the stream, so that the host does not wait for it.
  void add(shard& to, std::string_view metric, const at::Tensor& sum) const;
  void add(device_shard& to, std::string_view metric, const at::Tensor& sum) const;
  void add(shard& to, std::string_view metric, double sum) const;
  void add(device_shard& to, std::string_view metric, double sum) const;

  /// Reduces, lets the optimizer take a step with the mean gradient, the same on every rank, and updates buffers. In
  /// `before_update` the parameters' `.grad` are the mean: clip them there. Learning rates that the body sets by the
  /// step's number, and those of a scheduler (`schedule`), are the same in a resumed run. One that the program begins
  /// with is the checkpoint's in a resumed run, unless the program has changed it. Afterwards they are undefined, and
  /// generators are seeded by (seed, step). Returns false if the optimizer took no step, because the scaled gradient is
  /// not finite (`replica_options::loss_scale`). Throws as `step.all_reduce` does, and `exception` with
  /// `errc::user_error` if the mean to divide by is negative or not finite.
  bool apply(step& step, const std::function<void()>& before_update = {});
  bool apply(device_step& step, const std::function<void()>& before_update = {});

 private:
  class impl;

  [[nodiscard]] train_context& context() const noexcept;
  /// `owner` prepares a shard before it is used, and completes it after.
  static void begin(impl& owner, shard& current);
  static void begin(impl& owner, device_shard& current);
  static void end(impl& owner);

  std::unique_ptr<impl> impl_;
};

/// The result of `replica::shards`, for one range-based for loop.
template <class List>
class replica::shard_sequence {
 public:
  class iterator {
   public:
    using list_iterator = typename List::iterator;

    iterator(impl* owner, list_iterator position) : owner_(owner), position_(position) {}
    auto& operator*() const {
      auto& result = *position_;
      replica::begin(*owner_, result);
      return result;
    }
    iterator& operator++() {
      replica::end(*owner_);
      ++position_;
      return *this;
    }
    bool operator==(const iterator& other) const noexcept { return position_ == other.position_; }

   private:
    impl* owner_;
    list_iterator position_;
  };

  shard_sequence(impl& owner, List& list) : owner_(&owner), list_(&list) {}

  [[nodiscard]] iterator begin() noexcept { return {owner_, list_->begin()}; }
  [[nodiscard]] iterator end() noexcept { return {owner_, list_->end()}; }
  [[nodiscard]] std::uint32_t size() const noexcept { return list_->size(); }

 private:
  impl* owner_;
  List* list_;
};

/// The exponential moving average of a module's trainable parameters, tracked as "average/PARAMETER": on the worker's
/// device, in f32. Buffers are not averaged. Used from the training thread; must not outlive its constructor's
/// arguments.
class weight_average {
 public:
  /// Begins with the present parameters, or a checkpoint's average: construct it after `replica`. Throws `exception`
  /// as `tracked_state::track` does, and `errc::invalid_argument` for a decay outside of 0 to 1.
  weight_average(train_context& ctx, torch::nn::Module& model, double decay);
  weight_average(train_context& ctx, torch::jit::Module& model, double decay);
  ~weight_average();
  weight_average(weight_average&&) noexcept;
  weight_average& operator=(weight_average&&) noexcept;

  /// After `replica::apply`: average = decay * average + (1 - decay) * parameters.
  void update();

  /// Calls `function` while the module has the average's values, to evaluate it. In a step's body, after
  /// `replica::apply`.
  void evaluate(const std::function<void()>& function);

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

/// While it exists, matrix products and convolutions of this thread compute in bf16 on the worker's device, and what
/// needs more precision in f32: PyTorch's autocast. Parameters and gradients stay f32. For forward passes: end it
/// before `backward`.
///
///     auto loss = [&] {
///       auto in_bf16 = troupe::libtorch::autocast{ctx};
///       return cross_entropy(model->forward(images), labels);
///     }();
///     loss.backward();
class autocast {
 public:
  explicit autocast(const train_context& ctx);
  ~autocast();
  autocast(const autocast&) = delete;
  autocast& operator=(const autocast&) = delete;

 private:
  bool on_gpu_;
  bool was_enabled_;
  int previous_type_;
};

/// A batch's column as a tensor, whose first dimension is the samples. It shares the batch's memory, is valid as long
/// as that, and must not be written. Throws `exception` (`errc::not_found`) if there is no such column.
[[nodiscard]] at::Tensor tensor_of(const data::batch& samples, std::string_view column);

/// The device of this worker: the CPU, or the first GPU that the run assigned to it (`scaling_config::use_gpu`). Throws
/// `exception` (`errc::unsatisfiable`) if a GPU was assigned and LibTorch finds none.
[[nodiscard]] c10::Device device_of(const train_context& ctx);

/// Which values of a module's parameters.
enum class weights : std::uint8_t {
  trained,
  /// Those of a `weight_average`.
  averaged,
};

/// Loads a module's parameters and buffers by name from a checkpoint of a `replica`. A tensor that several parts of the
/// module share may be stored under any of its names. Other tensors of the checkpoint are ignored. Fails with
/// `errc::mismatch`, naming each tensor that is missing or has another type or shape, and leaves the module unchanged;
/// with `errc::not_found` if the checkpoint has no averages and they are wanted; and as `checkpoint::read_tensor` does.
[[nodiscard]] expected<void> load_module(const serialization::checkpoint& source, torch::nn::Module& model,
                                         weights which = weights::trained);
[[nodiscard]] expected<void> load_module(const serialization::checkpoint& source, torch::jit::Module& model,
                                         weights which = weights::trained);

/// A module as a predictor: loaded by `load_module`, and set to `eval()`. `forward` returns a tensor with one row of
/// `outputs.size()` numbers per sample, on any device; it runs without gradients. Matrix products may round differently
/// with another batch size or number of threads: a worker's threads are set by `make_framework`, and a batch predictor
/// cuts rows in the same way for any number of workers. Fails as `load_module` does.
[[nodiscard]] expected<inference::predictor_ptr>
load_predictor(const serialization::checkpoint& source, std::shared_ptr<torch::nn::Module> model,
               std::vector<std::string> outputs, std::function<at::Tensor(const data::batch& rows)> forward,
               weights which = weights::trained);
/// `model` shares its tensors with the one that `forward` uses.
[[nodiscard]] expected<inference::predictor_ptr>
load_predictor(const serialization::checkpoint& source, const torch::jit::Module& model,
               std::vector<std::string> outputs, std::function<at::Tensor(const data::batch& rows)> forward,
               weights which = weights::trained);

} // namespace troupe::libtorch

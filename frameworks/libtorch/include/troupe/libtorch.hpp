#pragma once

#include <troupe/data/batch.hpp>
#include <troupe/error.hpp>
#include <troupe/framework.hpp>
#include <troupe/inference/predictor.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/train_context.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
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

namespace torch::optim {
class Optimizer;
}

/// Trains what is written in LibTorch. This header includes none of LibTorch's.
namespace troupe::libtorch {

/// Of a worker process; part of the program.
struct framework_options {
  /// Threads of one worker's kernels. Gradients depend on it: a constant of the program, not of the machine.
  int threads = 1;
};

/// What LibTorch needs in a worker process: deterministic algorithms, a fixed number of threads, generators seeded by
/// the run's seed (so that a model made in the training function begins with the same parameters everywhere). Its
/// versions and kernels become part of the numerics fingerprint. Says so on standard error, on the host's first worker,
/// when matrix products go through the reference BLAS, which is some ten times slower than others, and when OpenBLAS
/// takes the processor for an old one.
[[nodiscard]] std::shared_ptr<framework> make_framework(framework_options options = {});

struct replica_options {
  /// Has the reduction of the gradient begin while backward still runs. Wants one `backward()` for each shard, and
  /// gradients that are not changed after it. Does not change the result.
  bool overlap = true;
  /// Buffers that forward passes change, by the last part of their names. Each shard's change is a contribution,
  /// weighted by its samples; the mean is applied once. Those of batch norm are here. Others must not change before
  /// `apply`.
  std::vector<std::string> reduced_buffers = {"running_mean", "running_var", "num_batches_tracked"};
};

/// A module and its optimizer as this worker's copy of what the run trains. Parameters, buffers and the optimizer's
/// state are tracked: parameters and buffers by the names that a PyTorch `state_dict` has, the optimizer's as
/// "optimizer/PARAMETER/STATE". Tensors in host memory and in their dimensions' order stay where they are; of others
/// (on a GPU, channels last) a host copy is tracked, and brought up to date after each step.
///
///     auto replica = troupe::libtorch::replica{ctx, *model, optimizer};
///     ctx.for_each_step(batches.plan(replica.gradient_elements()), [&](troupe::step& step) {
///       for (auto& shard : replica.shards(step)) {
///         auto loss = cross_entropy(model->forward(...), ..., torch::kSum);
///         loss.backward();
///         shard.add("loss", loss.item<double>());
///       }
///       replica.apply(step);
///
/// Losses are sums over the shard's samples: `apply` divides by the batch. `zero_grad` is not needed, and not allowed
/// before `apply`. Used from the training thread; may not outlive what it was given.
class replica {
 public:
  /// Makes the optimizer's state, tracks everything, and takes over a checkpoint's values. Every parameter with a
  /// gradient is f32. Throws `exception`: `errc::invalid_argument` for another type, for an optimizer that is none of
  /// Adam, AdamW, SGD, RMSprop and Adagrad, for a parameter of it that is none of the module's, and where the training
  /// function does not name the framework; and what `tracked_state::track` throws.
  replica(train_context& ctx, torch::nn::Module& model, torch::optim::Optimizer& optimizer,
          replica_options options = {});
  ~replica();
  replica(replica&&) noexcept;
  replica& operator=(replica&&) noexcept;

  /// For `step_plan::gradient_elements`: parameters, each padded to 64 bytes, and changes of buffers.
  [[nodiscard]] std::uint64_t gradient_elements() const noexcept;

  class shard_sequence;

  /// The step's shards, as `step.shards()`. When one is taken, generators are seeded by (seed, step, shard), buffers
  /// are as after the last step, and the parameters' `.grad` are zeros inside the shard's own gradient; when the next
  /// is, its contribution ends. Throws `exception` where a tensor or gradient has been moved, and for a second
  /// `backward()` while the reduction is under way.
  [[nodiscard]] shard_sequence shards(step& step);

  /// Reduces, has the optimizer take a step with the mean gradient, the same on every rank, and updates buffers. In
  /// `before_update` the parameters' `.grad` are the mean: the place to clip them, and to set learning rates by the
  /// step's number. Afterwards they are undefined, and generators are seeded by (seed, step). Throws as
  /// `step.all_reduce` does.
  void apply(step& step, const std::function<void()>& before_update = {});

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

/// What `replica::shards` returns: for a range-based for loop, once.
class replica::shard_sequence {
 public:
  class iterator {
   public:
    iterator(impl* owner, shard_list::iterator position) : owner_(owner), position_(position) {}
    shard& operator*() const;
    iterator& operator++();
    bool operator==(const iterator& other) const noexcept { return position_ == other.position_; }

   private:
    impl* owner_;
    shard_list::iterator position_;
  };

  shard_sequence(impl& owner, shard_list& list) : owner_(&owner), list_(&list) {}

  [[nodiscard]] iterator begin() noexcept { return {owner_, list_->begin()}; }
  [[nodiscard]] iterator end() noexcept { return {owner_, list_->end()}; }
  [[nodiscard]] std::uint32_t size() const noexcept { return list_->size(); }

 private:
  impl* owner_;
  shard_list* list_;
};

/// A batch's column as a tensor, the samples being the first dimension, without a copy: valid as long as the batch's
/// memory. Not to be written. Throws `exception` (`errc::not_found`) for a column that there is not.
[[nodiscard]] at::Tensor tensor_of(const data::batch& samples, std::string_view column);

/// What this worker computes on: the CPU, or the first of the GPUs that the run has given it
/// (`scaling_config::use_gpu`). Throws `exception` (`errc::unsatisfiable`) where it was given one and LibTorch finds
/// none.
[[nodiscard]] c10::Device device_of(const train_context& ctx);

/// Gives a module the parameters and buffers of a checkpoint that a `replica` was part of, by their names; a tensor
/// that several parts of the module share may be there under any of its names. What else the checkpoint holds is passed
/// over. Fails with `errc::mismatch`, naming each tensor that it does not have, or has of another type or shape, and
/// the module is then as it was; and as `checkpoint::read_tensor` does.
[[nodiscard]] expected<void> load_module(const serialization::checkpoint& source, torch::nn::Module& model);

/// A module as a predictor: filled as by `load_module`, and set to `eval()`. `forward` returns a tensor of one row of
/// `outputs.size()` numbers for each sample of the batch, from any device; it runs without gradients. Products of
/// matrices may round otherwise in another batch and with another number of threads: a worker's are what
/// `make_framework` says, and a batch predictor cuts rows in the same way on any number of workers. Fails as
/// `load_module` does.
[[nodiscard]] expected<inference::predictor_ptr>
load_predictor(const serialization::checkpoint& source, std::shared_ptr<torch::nn::Module> model,
               std::vector<std::string> outputs, std::function<at::Tensor(const data::batch& rows)> forward);

} // namespace troupe::libtorch

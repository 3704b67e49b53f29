#include "gpu.hpp"
#include "gradient_watch.hpp"
#include "module_tensors.hpp"
#include "optimizer_options.hpp"
#include "optimizer_state.hpp"
#include "tracked_tensor.hpp"

#include <troupe/libtorch.hpp>
#include <troupe/training/gradient.hpp>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <optional>
#include <utility>

namespace troupe::libtorch {

namespace {

/// Differs from the streams available to users.
constexpr std::uint32_t own_stream = 0xffffffffu;
constexpr auto no_shard = shard_id{0xffffffffu};

void seed_generators(random_stream random) {
  auto high = std::uint64_t{random()};
  torch::manual_seed(high << 32 | random());
}

std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

/// Where a gradient lies, on the host or a GPU.
float* address_of(const shard& current) {
  return current.gradient().data();
}
float* address_of(const device_shard& current) {
  return current.gradient().address();
}

/// LibTorch has no tensors of constants: whoever gets one leaves it as it is.
float* address_of(std::span<const float> mean) {
  return const_cast<float*>(mean.data());
}
float* address_of(device_span<const float> mean) {
  return const_cast<float*>(mean.address());
}

} // namespace

class replica::impl {
 public:
  impl(train_context& ctx, const module_tensors& model, torch::optim::Optimizer& optimizer, replica_options options)
      : ctx_(ctx),
        stream_(ctx),
        device_(device_of(ctx)),
        is_on_gpu_(ctx.device() != "cpu"),
        optimizer_(optimizer),
        optimizer_options_(optimizer),
        options_(std::move(options)) {
    if (!at::globalContext().deterministicAlgorithms())
      throw exception{errc::invalid_argument,
                      "LibTorch is not set up for equal bits: register its framework with the training function, as in "
                      "troupe::function{\"train\", train, {troupe::libtorch::make_framework()}}"};
    // Buffers first: backward writes the gradient's end first, where the reduction starts.
    add_buffers(model.buffers);
    auto names = add_parameters(model.parameters);
    add_optimizer(names);
    name_gradient();
  }

  ~impl() { drop_gradients(); }

  void schedule(training::schedule factor) {
    check_before_first_step();
    optimizer_options_.follow(std::move(factor));
  }

  void schedule(torch::optim::LRScheduler& scheduler, std::uint64_t steps) {
    check_before_first_step();
    if (steps == 0)
      throw exception{errc::invalid_argument, "replica.schedule(scheduler, 0): a scheduler takes a step after every "
                                              "1 or more steps of the optimizer"};
    optimizer_options_.add(scheduler, steps);
  }

  [[nodiscard]] std::uint64_t gradient_elements() const noexcept { return layout_.elements(); }
  [[nodiscard]] train_context& context() const noexcept { return ctx_; }
  [[nodiscard]] bool is_on_gpu() const noexcept { return is_on_gpu_; }
  [[nodiscard]] double loss_scale() const noexcept { return loss_scale_ ? loss_scale_->value() : 1; }

  /// For a step whose gradient is on the host, or on a GPU.
  void begin_step(bool wants_gpu) {
    if (wants_gpu != is_on_gpu_)
      throw exception{errc::user_error,
                      "this worker's module is on a GPU, and the step's gradient is not: use replica.for_each_step, "
                      "with a body that takes auto& step"};
    check_places();
  }

  void begin_shard(basic_shard& current, float* gradient) {
    watch_->leave();
    shard_ = &current;
    gradient_ = gradient;
    seed_generators(current.random(own_stream));
    for (auto& each : buffers_)
      tracked_[each.tensor].load();
    for (auto& each : parameters_)
      each.tensor.mutable_grad() = view_of(gradient, each.part, each.tensor.sizes());
    watch_->begin(current);
  }

  void end_shard() {
    if (shard_ == nullptr)
      return;
    auto& current = *std::exchange(shard_, nullptr);
    watch_->end();
    auto guard = at::NoGradGuard{};
    for (const auto& each : parameters_)
      check_gradient(each);
    for (const auto& each : buffers_) {
      const auto& tensor = tracked_[each.tensor];
      auto change = tensor.live().sub(tensor.tracked()).to(at::kFloat);
      auto weight = static_cast<double>(current.samples().size());
      view_of(gradient_, each.part, change.sizes()).copy_(change.mul_(weight));
    }
  }

  template <class Step>
  bool apply(Step& current, const std::function<void()>& before_update) {
    end_shard();
    check_places();
    auto* mean = address_of(current.all_reduce());
    const auto is_finite = !loss_scale_ || loss_scale_->update_with(has_finite_gradients(mean));
    seed_generators({ctx_.seed(), current.id(), no_shard, own_stream});
    if (is_finite)
      update_parameters(current, mean, before_update);
    drop_gradients();
    update_buffers(mean);
    store();
    applied_ = current.number();
    loaded_for_.reset();
    is_applied_in_body_ = true;
    return is_finite;
  }

  [[nodiscard]] at::Tensor sum_at(double* address) const {
    return at::from_blob(address, {}, at::TensorOptions{at::kDouble}.device(device_));
  }

 private:
  struct parameter {
    at::Tensor tensor;
    std::string name;
    std::size_t part;
  };

  struct reduced_buffer {
    std::size_t tensor;
    std::size_t part;
  };

  void check_places() const {
    for (const auto& each : tracked_)
      each.check_place();
  }

  void check_before_first_step() const {
    if (applied_)
      throw exception{errc::user_error,
                      "replica.schedule was called after the first step: call it before for_each_step"};
  }

  /// A part of a gradient.
  [[nodiscard]] at::Tensor view_of(float* gradient, std::size_t part, at::IntArrayRef sizes) const {
    return at::from_blob(gradient + layout_[part].first, sizes, at::TensorOptions{at::kFloat}.device(device_));
  }

  /// The parameters' parts, which are behind those of the buffers.
  [[nodiscard]] bool has_finite_gradients(float* mean) const {
    const auto part = parameters_.front().part;
    const auto size = layout_.elements() - layout_[part].first;
    return is_on_gpu_ ? at::isfinite(view_of(mean, part, {static_cast<std::int64_t>(size)})).all().item<bool>()
                      : training::is_finite({mean + layout_[part].first, size});
  }

  void update_parameters(const basic_step& current, float* mean, const std::function<void()>& before_update) {
    set_gradients(mean, factor_of(current), before_update != nullptr);
    optimizer_options_.on_apply(current.number());
    if (before_update)
      before_update();
    take_step(optimizer_, steps_.front() == 0);
    ++steps_.front();
    optimizer_options_.on_step(static_cast<std::uint64_t>(steps_.front()));
  }

  /// By how much to multiply what was reduced.
  [[nodiscard]] float factor_of(const basic_step& current) const {
    auto divisor = loss_scale_ ? loss_scale_->before() : 1.0;
    if (options_.divide_by.empty())
      return static_cast<float>(1 / divisor);
    const auto weight = current.mean(options_.divide_by);
    if (!(weight >= 0) || !std::isfinite(weight))
      throw exception{errc::user_error,
                      fmt::format("replica_options.divide_by: the mean of '{}' in step {} is {}, which the gradient "
                                  "cannot be divided by",
                                  options_.divide_by, current.number(), weight)};
    // Without any weight the gradient is zero.
    return static_cast<float>(1 / (weight > 0 ? divisor * weight : divisor));
  }

  void track(std::string name, const at::Tensor& tensor, tracked_tensor::memory where) {
    tracked_.emplace_back(ctx_, std::move(name), tensor, where);
  }

  void add_buffers(const std::vector<named_tensor>& all) {
    for (const auto& [name, tensor] : all) {
      if (!tensor.defined() || tensor.numel() == 0)
        continue;
      auto is_reduced = std::ranges::find(options_.reduced_buffers, last_part(name)) != options_.reduced_buffers.end();
      track(name, tensor, is_reduced ? tracked_tensor::memory::copy : tracked_tensor::memory::own);
      if (is_reduced)
        buffers_.push_back({tracked_.size() - 1, layout_.add(static_cast<std::uint64_t>(tensor.numel()))});
    }
  }

  parameter_names add_parameters(const std::vector<named_tensor>& all) {
    parameter_names names;
    watch_ = std::make_shared<gradient_watch>(layout_, stream_, is_on_gpu_);
    for (const auto& [name, tensor] : all) {
      // Shared parameters have several names, and are added once.
      if (!tensor.defined() || tensor.numel() == 0 || !names.emplace(tensor.unsafeGetTensorImpl(), name).second)
        continue;
      track(name, tensor, tracked_tensor::memory::own);
      if (!tensor.requires_grad())
        continue;
      if (tensor.scalar_type() != at::kFloat)
        throw exception{
            errc::invalid_argument,
            fmt::format("parameter '{}' is of LibTorch's type {}: gradients are f32; convert the module with "
                        "to(torch::kFloat), or set requires_grad of the parameter to false",
                        name, toString(tensor.scalar_type()))};
      if (tensor.device() != device_)
        throw exception{errc::invalid_argument,
                        fmt::format("parameter '{}' is on {}, and this worker trains on {}: move the module to "
                                    "troupe::libtorch::device_of(ctx)",
                                    name, tensor.device().str(), device_.str())};
      auto part = layout_.add(static_cast<std::uint64_t>(tensor.numel()));
      parameters_.push_back({tensor, name, part});
      if (options_.overlap)
        watch_->add(tensor, name, part);
    }
    if (parameters_.empty())
      throw exception{errc::invalid_argument, "the module passed to libtorch::replica has no parameters to train"};
    return names;
  }

  void add_optimizer(const parameter_names& names) {
    auto state = make_optimizer_state(optimizer_, names);
    for (auto& [name, tensor] : state.tensors)
      track("optimizer/" + name, tensor, tracked_tensor::memory::own);
    counts_ = std::move(state.counts);
    steps_.resize(1 + counts_.size());
    store_counts();
    ctx_.state().track("optimizer/steps", steps_);
    ctx_.state().track("optimizer/options", optimizer_options_.values(), optimizer_options_.shape());
    optimizer_options_.on_tracked();
    if (options_.loss_scale)
      loss_scale_.emplace(ctx_.state(), *options_.loss_scale, "optimizer/loss_scale");
    ctx_.state().around_body([this](std::uint64_t number) { begin_body(number); }, [this] { store_options(); });
    load();
  }

  /// Before the body may change options.
  void begin_body(std::uint64_t step) {
    check_places();
    // A joiner or a resumed run has a state that this replica did not compute.
    if (is_loaded_for(step))
      return;
    load();
    optimizer_options_.load(static_cast<std::uint64_t>(steps_.front()));
    loaded_for_ = step;
  }

  /// Whether the state is what this replica computed, or what it has loaded for this step.
  [[nodiscard]] bool is_loaded_for(std::uint64_t step) const {
    return loaded_for_ == step || (applied_ && step == *applied_ + 1);
  }

  /// In a body without `apply` there is nothing to store.
  void store_options() {
    if (!std::exchange(is_applied_in_body_, false) || !optimizer_options_.store())
      return;
    if (ctx_.rank() == 0 && !std::exchange(has_warned_, true))
      std::fprintf(stderr,
                   "libtorch: an option of the optimizer, such as the learning rate, changed after replica.apply in "
                   "step %llu. A scheduler that the program calls itself begins anew in a resumed run, whose bits then "
                   "differ: pass it to replica.schedule, or set the learning rate by the step's number\n",
                   static_cast<unsigned long long>(*applied_));
  }

  void name_gradient() {
    std::vector<gradient_tensor> tensors;
    auto add = [&](const std::string& name, std::size_t part) {
      tensors.push_back({name, layout_[part].first, layout_[part].elements});
    };
    for (const auto& each : buffers_)
      add(tracked_[each.tensor].name(), each.part);
    for (const auto& each : parameters_)
      add(each.name, each.part);
    ctx_.name_gradient(std::move(tensors));
  }

  void load() {
    for (auto& each : tracked_)
      each.load();
    for (std::size_t i = 0; i < counts_.size(); ++i)
      *counts_[i] = steps_[i + 1];
  }

  void store() {
    for (auto& each : tracked_)
      each.store();
    store_counts();
  }

  void store_counts() {
    for (std::size_t i = 0; i < counts_.size(); ++i)
      steps_[i + 1] = *counts_[i];
  }

  void check_gradient(const parameter& each) const {
    const auto& gradient = each.tensor.grad();
    if (!gradient.defined() || gradient.data_ptr() != gradient_ + layout_[each.part].first)
      throw exception{
          errc::user_error,
          fmt::format("the gradient of '{}' was replaced while a shard was computed: do not call zero_grad, "
                      "every shard begins with zeros",
                      each.name)};
  }

  void set_gradients(float* mean, float factor, bool to_be_changed) {
    // Optimizers only read gradients; `before_update` may change them.
    if (to_be_changed || factor != 1) {
      const auto all = view_of(mean, 0, {static_cast<std::int64_t>(layout_.elements())});
      if (!own_mean_.defined())
        own_mean_ = at::empty_like(all);
      own_mean_.copy_(all);
      if (factor != 1)
        own_mean_.mul_(factor);
      mean = static_cast<float*>(own_mean_.data_ptr());
    }
    for (auto& each : parameters_)
      each.tensor.mutable_grad() = view_of(mean, each.part, each.tensor.sizes());
  }

  void drop_gradients() noexcept {
    for (auto& each : parameters_)
      each.tensor.mutable_grad() = at::Tensor{};
  }

  void update_buffers(float* mean) {
    auto guard = at::NoGradGuard{};
    for (const auto& each : buffers_) {
      auto& tensor = tracked_[each.tensor];
      auto change = view_of(mean, each.part, tensor.tracked().sizes());
      auto is_whole = at::isIntegralType(tensor.tracked().scalar_type(), true);
      tensor.tracked().add_((is_whole ? change.round() : change).to(tensor.tracked().scalar_type()));
      tensor.load();
    }
  }

  train_context& ctx_;
  /// First, because graphs remember the stream on which they are made.
  gpu_stream_scope stream_;
  const c10::Device device_;
  const bool is_on_gpu_;
  torch::optim::Optimizer& optimizer_;
  optimizer_options optimizer_options_;
  replica_options options_;
  training::gradient_layout layout_;
  std::vector<tracked_tensor> tracked_;
  std::vector<parameter> parameters_;
  std::vector<reduced_buffer> buffers_;
  std::shared_ptr<gradient_watch> watch_;
  std::optional<training::loss_scale> loss_scale_;
  /// The number of the optimizer's steps, then the optimizer's counts for each parameter.
  std::vector<std::int64_t> steps_;
  std::vector<std::int64_t*> counts_;
  basic_shard* shard_ = nullptr;
  /// The shard's.
  float* gradient_ = nullptr;
  /// The last step that this replica applied.
  std::optional<std::uint64_t> applied_;
  /// The step for which the state was loaded last.
  std::optional<std::uint64_t> loaded_for_;
  bool is_applied_in_body_ = false;
  bool has_warned_ = false;
  /// A copy of the mean gradient, if it is to be changed.
  at::Tensor own_mean_;
};

replica::replica(train_context& ctx, torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                 replica_options options)
    : impl_(std::make_unique<impl>(ctx, tensors_of(model), optimizer, std::move(options))) {}

replica::replica(train_context& ctx, torch::jit::Module& model, torch::optim::Optimizer& optimizer,
                 replica_options options)
    : impl_(std::make_unique<impl>(ctx, tensors_of(model), optimizer, std::move(options))) {}

replica::~replica() = default;
replica::replica(replica&&) noexcept = default;
replica& replica::operator=(replica&&) noexcept = default;

void replica::schedule(torch::optim::LRScheduler& scheduler, std::uint64_t steps) {
  impl_->schedule(scheduler, steps);
}

void replica::schedule(training::schedule factor) {
  impl_->schedule(std::move(factor));
}

double replica::loss_scale() const noexcept {
  return impl_->loss_scale();
}

std::uint64_t replica::gradient_elements() const noexcept {
  return impl_->gradient_elements();
}

bool replica::is_on_gpu() const noexcept {
  return impl_->is_on_gpu();
}

train_context& replica::context() const noexcept {
  return impl_->context();
}

replica::shard_sequence<shard_list> replica::shards(step& step) {
  impl_->begin_step(false);
  return {*impl_, step.shards()};
}

replica::shard_sequence<device_shard_list> replica::shards(device_step& step) {
  impl_->begin_step(true);
  return {*impl_, step.shards()};
}

void replica::add(shard& to, std::string_view metric, const at::Tensor& sum) const {
  to.add(metric, sum.item<double>());
}

void replica::add(device_shard& to, std::string_view metric, const at::Tensor& sum) const {
  auto guard = at::NoGradGuard{};
  impl_->sum_at(to.metric(metric).address()).add_(sum.detach().to(at::kDouble).reshape({}));
}

void replica::add(shard& to, std::string_view metric, double sum) const {
  to.add(metric, sum);
}

void replica::add(device_shard& to, std::string_view metric, double sum) const {
  impl_->sum_at(to.metric(metric).address()).add_(sum);
}

bool replica::apply(step& step, const std::function<void()>& before_update) {
  return impl_->apply(step, before_update);
}

bool replica::apply(device_step& step, const std::function<void()>& before_update) {
  return impl_->apply(step, before_update);
}

void replica::begin(impl& owner, shard& current) {
  owner.begin_shard(current, address_of(current));
}

void replica::begin(impl& owner, device_shard& current) {
  owner.begin_shard(current, address_of(current));
}

void replica::end(impl& owner) {
  owner.end_shard();
}

} // namespace troupe::libtorch

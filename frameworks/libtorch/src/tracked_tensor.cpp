#include "tracked_tensor.hpp"

#include "element_types.hpp"
#include "gpu.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <fmt/format.h>
#include <utility>
#include <vector>

namespace troupe::libtorch {

namespace {

dtype type_of(const at::Tensor& tensor, const std::string& name) {
  if (auto type = dtype_from(tensor.scalar_type()))
    return *type;
  throw exception{errc::invalid_argument,
                  fmt::format("tensor '{}' is of LibTorch's type {}, which cannot be tracked: use "
                              "a real type of 8 to 64 bits",
                              name, toString(tensor.scalar_type()))};
}

} // namespace

tracked_tensor::tracked_tensor(train_context& ctx, std::string name, at::Tensor live, memory where)
    : name_(std::move(name)), live_(std::move(live)) {
  auto type = type_of(live_, name_);
  if (live_.layout() != at::kStrided)
    throw exception{errc::invalid_argument,
                    fmt::format("tensor '{}' is sparse: only dense tensors can be tracked", name_)};
  const auto is_here = is_on_gpu(ctx, live_);
  if (!is_here && !live_.is_cpu())
    throw exception{errc::invalid_argument,
                    fmt::format("tensor '{}' is on {}, which the run has not assigned to this worker: move the module "
                                "to troupe::libtorch::device_of(ctx)",
                                name_, live_.device().str())};
  auto guard = at::NoGradGuard{};
  in_place_ = where == memory::own && live_.is_contiguous();
  tracked_ = in_place_ ? live_.detach() : at::empty(live_.sizes(), live_.options()).copy_(live_);
  place_ = live_.data_ptr();
  std::vector<std::uint64_t> shape;
  for (auto size : tracked_.sizes())
    shape.push_back(static_cast<std::uint64_t>(size));
  auto* bytes = static_cast<std::byte*>(tracked_.data_ptr());
  if (is_here)
    ctx.track_on_gpu(name_, type, std::move(shape), device_span<std::byte>{bytes, tracked_.nbytes()});
  else
    ctx.state().add({{name_, type, std::move(shape)}, bytes}, tracked_.nbytes());
  load();
}

void tracked_tensor::load() {
  auto guard = at::NoGradGuard{};
  if (!in_place_)
    live_.copy_(tracked_);
}

void tracked_tensor::store() {
  auto guard = at::NoGradGuard{};
  if (!in_place_)
    tracked_.copy_(live_);
}

void tracked_tensor::check_place() const {
  if (live_.data_ptr() != place_ || live_.scalar_type() != tracked_.scalar_type())
    throw exception{
        errc::user_error,
        fmt::format("tensor '{}' has been moved since it was tracked: move the module to its device and type "
                    "before constructing libtorch::replica, and replace none of its tensors afterwards",
                    name_)};
}

} // namespace troupe::libtorch

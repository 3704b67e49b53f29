#include "tracked_tensor.hpp"

#include "element_types.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <fmt/format.h>
#include <utility>

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

tracked_tensor::tracked_tensor(std::string name, at::Tensor live, memory where, tracked_state& state)
    : name_(std::move(name)), live_(std::move(live)) {
  auto type = type_of(live_, name_);
  if (live_.layout() != at::kStrided)
    throw exception{errc::invalid_argument,
                    fmt::format("tensor '{}' is sparse: only dense tensors can be tracked", name_)};
  auto guard = at::NoGradGuard{};
  in_place_ = where == memory::own && live_.is_cpu() && live_.is_contiguous();
  if (in_place_)
    tracked_ = live_.detach();
  else {
    tracked_ = at::empty(live_.sizes(), at::TensorOptions{live_.scalar_type()}.pinned_memory(live_.is_cuda()));
    tracked_.copy_(live_);
  }
  place_ = live_.data_ptr();
  tensor_view view{{name_, type, {}}, static_cast<std::byte*>(tracked_.data_ptr())};
  for (auto size : tracked_.sizes())
    view.spec.shape.push_back(static_cast<std::uint64_t>(size));
  state.add(std::move(view), tracked_.nbytes());
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

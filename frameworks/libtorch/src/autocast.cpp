#include "torch_version.hpp"

#include <troupe/libtorch.hpp>

#include <utility>

namespace troupe::libtorch {

autocast::autocast(const train_context& ctx)
    : on_gpu_(device_of(ctx).is_cuda()),
      was_enabled_(is_autocast_enabled(on_gpu_)),
      previous_type_(static_cast<int>(autocast_type(on_gpu_))) {
  set_autocast(on_gpu_, true, at::kBFloat16);
  at::autocast::increment_nesting();
}

autocast::~autocast() {
  // The cache keeps casts of the parameters, which change with the next step.
  if (at::autocast::decrement_nesting() == 0)
    at::autocast::clear_cache();
  set_autocast(on_gpu_, was_enabled_, static_cast<at::ScalarType>(previous_type_));
}

} // namespace troupe::libtorch

#include "element_types.hpp"

#include <troupe/torch.hpp>

#include <ATen/ATen.h>

namespace troupe::libtorch {

at::Tensor tensor_of(const data::batch& samples, std::string_view column) {
  auto index = samples.index_of(column);
  const auto& spec = samples.columns()[index];
  std::vector<std::int64_t> sizes{static_cast<std::int64_t>(samples.size())};
  for (auto n : spec.shape)
    sizes.push_back(static_cast<std::int64_t>(n));
  // LibTorch has no tensors that cannot be written.
  auto* data = const_cast<std::byte*>(samples.bytes(index).data());
  return at::from_blob(data, sizes, at::TensorOptions{scalar_type_from(spec.type).value()});
}

} // namespace troupe::libtorch

#include "element_types.hpp"

#include <troupe/libtorch.hpp>

#include <ATen/ATen.h>
#include <fmt/format.h>

namespace troupe::libtorch {

at::Tensor tensor_of(const data::batch& samples, std::string_view column) {
  auto index = samples.index_of(column);
  const auto& spec = samples.columns()[index];
  auto type = scalar_type_from(spec.type);
  if (!type)
    throw exception{errc::invalid_argument,
                    fmt::format("column '{}' is {}, for which LibTorch has no tensor type: make it i32 or i64 in the "
                                "data set",
                                column, to_string(spec.type))};
  std::vector<std::int64_t> sizes{static_cast<std::int64_t>(samples.size())};
  for (auto n : spec.shape)
    sizes.push_back(static_cast<std::int64_t>(n));
  // LibTorch has no read-only tensors.
  auto* data = const_cast<std::byte*>(samples.bytes(index).data());
  return at::from_blob(data, sizes, at::TensorOptions{*type});
}

} // namespace troupe::libtorch

#pragma once

#include <troupe/dtype.hpp>
#include <troupe/inspect.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe {

/// The description of a tensor, without its bytes. The last dimension varies fastest; a scalar has no dimensions.
struct tensor_spec {
  std::string name;
  dtype type = dtype::f32;
  std::vector<std::uint64_t> shape;

  /// The product of the dimensions; 1 for a scalar.
  [[nodiscard]] std::uint64_t elements() const noexcept {
    std::uint64_t result = 1;
    for (auto n : shape)
      result *= n;
    return result;
  }

  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return elements() * size_of(type); }

  bool operator==(const tensor_spec&) const = default;
};

TROUPE_INSPECT(tensor_spec, name, type, shape)

/// A borrowed tensor: the owner keeps the bytes alive and in place while the view is used.
struct tensor_view {
  tensor_spec spec;
  std::byte* data = nullptr;
};

/// The descriptions of `tensors`, in order.
[[nodiscard]] inline std::vector<tensor_spec> specs_of(std::span<const tensor_view> tensors) {
  auto result = std::vector<tensor_spec>{};
  for (const auto& tensor : tensors)
    result.push_back(tensor.spec);
  return result;
}

} // namespace troupe

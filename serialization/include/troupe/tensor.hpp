#pragma once

#include <troupe/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

/// What a tensor is, without its bytes. The last dimension is the fastest; no dimensions is a scalar.
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

template <class Inspector>
bool inspect(Inspector& f, tensor_spec& x) {
  auto get = [&x] { return static_cast<std::uint8_t>(x.type); };
  auto set = [&x](std::uint8_t value) {
    x.type = static_cast<dtype>(value);
    return is_dtype(value);
  };
  return f.object(x).fields(f.field("name", x.name), f.field("type", get, set), f.field("shape", x.shape));
}

/// A tensor whose bytes belong to somebody else and stay where they are while the view is used.
struct tensor_view {
  tensor_spec spec;
  std::byte* data = nullptr;
};

} // namespace troupe

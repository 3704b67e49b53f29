#pragma once

#include <troupe/dtype.hpp>
#include <troupe/error.hpp>
#include <troupe/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe::data {

/// The texts of a categorical column: code i means `names[i]`.
using category_names = std::shared_ptr<const std::vector<std::string>>;

/// The description of one column of a data set.
struct column_spec {
  std::string name;
  dtype type = dtype::f32;
  /// The shape of one sample: no dimensions for a number, {28, 28} for an image. The last dimension varies fastest.
  std::vector<std::uint64_t> shape;
  /// For a categorical column (i64 codes, -1 for a missing value); null for all others.
  category_names categories;

  /// Numbers per sample.
  [[nodiscard]] std::uint64_t elements() const noexcept {
    std::uint64_t result = 1;
    for (auto n : shape)
      result *= n;
    return result;
  }

  /// Bytes per sample.
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return elements() * size_of(type); }

  /// Compares the texts of categories, not the pointers.
  bool operator==(const column_spec& other) const;
};

/// "f32[28, 28]", "i64": for messages.
[[nodiscard]] std::string describe(const column_spec& column);

/// A column with its values, sample after sample, without gaps. A value: copies share the memory.
struct column {
  column_spec spec;
  std::span<const std::byte> bytes;
  /// Keeps `bytes` alive: a vector, a mapped file.
  std::shared_ptr<const void> owner;

  [[nodiscard]] std::uint64_t samples() const noexcept {
    return spec.size_bytes() == 0 ? 0 : bytes.size() / spec.size_bytes();
  }
};

/// A column that owns values in memory. `shape` is that of one sample.
template <class T>
[[nodiscard]] column make_column(std::string name, std::vector<T> values, std::vector<std::uint64_t> shape = {},
                                 category_names categories = {}) {
  static_assert(!std::is_same_v<T, bool>, "std::vector<bool> has no bytes: take std::uint8_t");
  auto owner = std::make_shared<const std::vector<T>>(std::move(values));
  auto bytes = std::as_bytes(std::span{*owner});
  return {{std::move(name), dtype_of<T>, std::move(shape), std::move(categories)}, bytes, std::move(owner)};
}

/// A column from a tensor whose first dimension is the samples, such as an array from an NPY file. Fails with
/// `errc::invalid_argument` for a scalar, and if shape and bytes do not match.
[[nodiscard]] expected<column> make_column(std::string name, const tensor_spec& tensor, std::vector<std::byte> bytes);

} // namespace troupe::data

#pragma once

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/data/column.hpp>
#include <troupe/error.hpp>
#include <troupe/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace troupe::data {

/// Some samples, column by column: each column is one contiguous tensor on a 64-byte boundary whose first dimension
/// is the samples. Refilling a batch reuses its memory. Used by one thread at a time.
class batch {
 public:
  /// A column removed from a batch, with its values.
  struct detached_column {
    column_spec spec;
    collectives::aligned_buffer buffer;
  };

  /// Resizes the batch to `samples` samples of these columns. The values are then undefined.
  void reset(std::span<const column_spec> columns, std::uint64_t samples);

  /// The number of samples.
  [[nodiscard]] std::uint64_t size() const noexcept { return samples_; }

  [[nodiscard]] std::span<const column_spec> columns() const noexcept { return specs_; }

  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const noexcept;

  /// The index of a column. Throws `exception` (`errc::not_found`), listing the existing columns.
  [[nodiscard]] std::size_t index_of(std::string_view name) const;

  /// All values of a column. Valid until the batch is refilled or the column is replaced.
  [[nodiscard]] std::span<std::byte> bytes(std::size_t index) noexcept;
  [[nodiscard]] std::span<const std::byte> bytes(std::size_t index) const noexcept;

  /// The values as numbers, sample after sample. Throws `exception`: `errc::not_found`, or `errc::mismatch` if the
  /// column has another type.
  template <class T>
  [[nodiscard]] std::span<T> values(std::string_view name) {
    auto all = typed(name, dtype_of<T>);
    return {reinterpret_cast<T*>(const_cast<std::byte*>(all.data())), all.size() / sizeof(T)};
  }
  template <class T>
  [[nodiscard]] std::span<const T> values(std::string_view name) const {
    auto all = typed(name, dtype_of<T>);
    return {reinterpret_cast<const T*>(all.data()), all.size() / sizeof(T)};
  }

  /// The column as a tensor whose first dimension is the samples, from which a framework can make its own tensor
  /// without a copy. Throws `exception` (`errc::not_found`).
  [[nodiscard]] tensor_view tensor(std::string_view name);

  /// Replaces a column by one with undefined values, and returns the old one.
  detached_column replace(std::size_t index, column_spec column);

  /// Appends a column with undefined values; returns its index.
  std::size_t add(column_spec column);

  /// Removes a column; the indices of later columns decrease by one.
  detached_column remove(std::size_t index);

  /// Moves the columns of another batch of the same size to the end of this one.
  void append(batch&& other);

  /// Returns a removed column's memory for reuse.
  void recycle(detached_column&& column) { spare_.push_back(std::move(column.buffer)); }

 private:
  [[nodiscard]] std::span<const std::byte> typed(std::string_view name, dtype type) const;
  [[nodiscard]] collectives::aligned_buffer take_buffer(const column_spec& column);

  std::uint64_t samples_ = 0;
  std::vector<column_spec> specs_;
  std::vector<collectives::aligned_buffer> buffers_;
  std::vector<collectives::aligned_buffer> spare_;
};

} // namespace troupe::data

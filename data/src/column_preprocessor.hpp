#pragma once

#include <troupe/data/preprocessor.hpp>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::data {

/// A preprocessor that transforms columns independently, and keeps their names and order.
class column_preprocessor : public preprocessor {
 public:
  explicit column_preprocessor(std::vector<std::string> columns) : columns_(std::move(columns)) {}

  [[nodiscard]] nlohmann::json description() const final;
  [[nodiscard]] expected<std::vector<column_spec>> output(std::vector<column_spec> columns) const final;
  [[nodiscard]] expected<void> transform(batch& samples) const final { return change(samples, direction::forward); }
  [[nodiscard]] expected<void> inverse(batch& samples) const final { return change(samples, direction::backward); }

 protected:
  [[nodiscard]] virtual std::string_view kind() const noexcept = 0;
  /// The description's entries besides kind and columns.
  [[nodiscard]] virtual nlohmann::json options() const { return nlohmann::json::object(); }

  /// The transformed column's description; fails if the column cannot be transformed.
  [[nodiscard]] virtual expected<column_spec> output_column(const column_spec& column) const = 0;
  [[nodiscard]] virtual expected<void> apply(const column_spec& column, std::span<const std::byte> from,
                                             std::span<std::byte> to) const = 0;

  /// The inverse direction; fails by default, for kinds without an inverse.
  [[nodiscard]] virtual expected<column_spec> inverse_column(const column_spec& column) const;
  [[nodiscard]] virtual expected<void> apply_inverse(const column_spec& column, std::span<const std::byte> from,
                                                     std::span<std::byte> to) const;

  [[nodiscard]] const std::vector<std::string>& columns() const noexcept { return columns_; }
  [[nodiscard]] expected<std::size_t> index_of(std::span<const column_spec> columns, const std::string& name) const;
  [[nodiscard]] tl::unexpected<error> not_fitted(const column_spec& column) const;

 private:
  enum class direction : std::uint8_t { forward, backward };
  [[nodiscard]] expected<void> change(batch& samples, direction which) const;

  std::vector<std::string> columns_;
};

/// Whether `with_numbers` supports this type.
[[nodiscard]] constexpr bool is_readable(dtype type) noexcept {
  return type != dtype::f16 && type != dtype::bf16 && type != dtype::boolean;
}

template <class T, class F>
decltype(auto) with_numbers_of(std::span<const std::byte> bytes, F&& f) {
  return f(std::span<const T>{reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)});
}

/// Calls `f` with the bytes as a span of their type, which must satisfy `is_readable`.
template <class F>
decltype(auto) with_numbers(dtype type, std::span<const std::byte> bytes, F&& f) {
  switch (type) {
  case dtype::f64:
    return with_numbers_of<double>(bytes, f);
  case dtype::i64:
    return with_numbers_of<std::int64_t>(bytes, f);
  case dtype::i32:
    return with_numbers_of<std::int32_t>(bytes, f);
  case dtype::i16:
    return with_numbers_of<std::int16_t>(bytes, f);
  case dtype::i8:
    return with_numbers_of<std::int8_t>(bytes, f);
  case dtype::u8:
    return with_numbers_of<std::uint8_t>(bytes, f);
  case dtype::u16:
    return with_numbers_of<std::uint16_t>(bytes, f);
  case dtype::u32:
    return with_numbers_of<std::uint32_t>(bytes, f);
  case dtype::u64:
    return with_numbers_of<std::uint64_t>(bytes, f);
  case dtype::f32:
  case dtype::f16:
  case dtype::bf16:
  case dtype::boolean:
    break;
  }
  return with_numbers_of<float>(bytes, f);
}

} // namespace troupe::data

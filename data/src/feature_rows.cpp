#include <troupe/data/feature_rows.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace troupe::data {

namespace {

/// Adds a column's numbers to rows of `width`, from place `first` on.
template <class T>
void scatter(std::span<const std::byte> bytes, std::uint64_t elements, bool categorical, std::vector<float>& rows,
             std::uint64_t width, std::uint64_t first) {
  auto values = std::span{reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto missing = categorical && static_cast<double>(values[i]) < 0;
    rows[i / elements * width + first + i % elements] =
        missing ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(values[i]);
  }
}

expected<void> scatter_column(const batch& samples, std::size_t index, std::vector<float>& rows, std::uint64_t width,
                              std::uint64_t first) {
  const auto& spec = samples.columns()[index];
  auto add = [&]<class T>(T) {
    scatter<T>(samples.bytes(index), spec.elements(), spec.categories != nullptr, rows, width, first);
    return expected<void>{};
  };
  switch (spec.type) {
  case dtype::f32:
    return add(float{});
  case dtype::f64:
    return add(double{});
  case dtype::i8:
    return add(std::int8_t{});
  case dtype::i16:
    return add(std::int16_t{});
  case dtype::i32:
    return add(std::int32_t{});
  case dtype::i64:
    return add(std::int64_t{});
  case dtype::u8:
    return add(std::uint8_t{});
  case dtype::u16:
    return add(std::uint16_t{});
  case dtype::u32:
    return add(std::uint32_t{});
  case dtype::u64:
    return add(std::uint64_t{});
  case dtype::f16:
  case dtype::bf16:
  case dtype::boolean:
    break;
  }
  return fail(errc::mismatch, "column '" + spec.name + "' is " + describe(spec) +
                                  ", which is no feature: make it f32, f64 or an integer");
}

} // namespace

expected<std::vector<float>> feature_rows(const batch& samples, std::span<const std::string> columns) {
  std::vector<std::size_t> indices;
  std::uint64_t width = 0;
  for (const auto& name : columns) {
    auto found = samples.find(name);
    if (!found) {
      auto there = std::string{};
      for (const auto& each : samples.columns())
        there += (there.empty() ? "" : ", ") + each.name;
      return fail(errc::not_found, "no column '" + name + "' among " + there);
    }
    indices.push_back(*found);
    width += samples.columns()[*found].elements();
  }
  std::vector<float> rows(samples.size() * width);
  std::uint64_t first = 0;
  for (auto index : indices) {
    if (auto added = scatter_column(samples, index, rows, width, first); !added)
      return fail(std::move(added.error()));
    first += samples.columns()[index].elements();
  }
  return rows;
}

} // namespace troupe::data

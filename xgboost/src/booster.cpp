#include "booster.hpp"

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <xgboost/c_api.h>

namespace troupe::xgboost {

void check(int result) {
  if (result == 0)
    return;
  // The first line says it; a stack of addresses follows.
  auto text = std::string{XGBGetLastError()};
  throw library_error{"XGBoost: " + text.substr(0, text.find("\nStack trace"))};
}

// -- matrix -----------------------------------------------------------------------------------------------------------

matrix::matrix(std::span<const float> values, std::uint64_t rows, int threads) {
  auto columns = rows == 0 ? 0 : values.size() / rows;
  auto array = nlohmann::json{{"data", {reinterpret_cast<std::uintptr_t>(values.data()), true}},
                              {"shape", {rows, columns}},
                              {"typestr", "<f4"},
                              {"version", 3}};
  // JSON has no NaN, XGBoost's has.
  auto how = R"({"missing": NaN, "nthread": )" + std::to_string(threads) + "}";
  check(XGDMatrixCreateFromDense(array.dump().c_str(), how.c_str(), &handle_));
}

matrix::~matrix() {
  if (handle_ != nullptr)
    XGDMatrixFree(handle_);
}

void matrix::set(const char* field, std::span<const float> values) {
  check(XGDMatrixSetFloatInfo(handle_, field, values.data(), values.size()));
}

// -- booster ----------------------------------------------------------------------------------------------------------

booster::booster(std::span<void* const> cached) {
  check(XGBoosterCreate(cached.data(), cached.size(), &handle_));
}

booster::~booster() {
  if (handle_ != nullptr)
    XGBoosterFree(handle_);
}

void booster::set(const std::string& name, const std::string& value) {
  check(XGBoosterSetParam(handle_, name.c_str(), value.c_str()));
}

void booster::update(std::uint64_t round, const matrix& training) {
  check(XGBoosterUpdateOneIter(handle_, static_cast<int>(round), training.handle()));
}

metric_map booster::evaluate(std::uint64_t round, std::span<const std::pair<std::string, const matrix*>> sets) {
  std::vector<void*> handles;
  std::vector<const char*> names;
  for (const auto& [name, set] : sets) {
    handles.push_back(set->handle());
    names.push_back(name.c_str());
  }
  const char* text = nullptr;
  check(XGBoosterEvalOneIter(handle_, static_cast<int>(round), handles.data(), names.data(), handles.size(), &text));
  return parse_evaluation(text);
}

std::vector<std::byte> booster::save(std::string_view format) const {
  auto how = nlohmann::json{{"format", format}}.dump();
  bst_ulong size = 0;
  const char* bytes = nullptr;
  check(XGBoosterSaveModelToBuffer(handle_, how.c_str(), &size, &bytes));
  auto all = std::as_bytes(std::span{bytes, size});
  return {all.begin(), all.end()};
}

void booster::load(std::span<const std::byte> model) {
  check(XGBoosterLoadModelFromBuffer(handle_, model.data(), model.size()));
}

booster::predictions booster::predict(const matrix& rows) {
  static constexpr auto how =
      R"({"type": 0, "training": false, "iteration_begin": 0, "iteration_end": 0, "strict_shape": true})";
  const bst_ulong* shape = nullptr;
  bst_ulong dimensions = 0;
  const float* values = nullptr;
  check(XGBoosterPredictFromDMatrix(handle_, rows.handle(), how, &shape, &dimensions, &values));
  std::uint64_t outputs = 1;
  for (bst_ulong i = 1; i < dimensions; ++i)
    outputs *= shape[i];
  return {outputs, {values, dimensions == 0 ? 0 : shape[0] * outputs}};
}

// -- texts and columns ------------------------------------------------------------------------------------------------

metric_map parse_evaluation(std::string_view text) {
  metric_map result;
  while (!text.empty()) {
    auto field = text.substr(0, text.find('\t'));
    text.remove_prefix(std::min(text.size(), field.size() + 1));
    auto colon = field.rfind(':');
    if (colon == std::string_view::npos)
      continue;
    double value = 0;
    auto number = field.substr(colon + 1);
    if (auto [end, bad] = std::from_chars(number.data(), number.data() + number.size(), value);
        bad == std::errc{} && end == number.data() + number.size())
      result[std::string{field.substr(0, colon)}] = value;
  }
  return result;
}

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

expected<void> scatter_column(const data::batch& samples, std::size_t index, std::vector<float>& rows,
                              std::uint64_t width, std::uint64_t first) {
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
  return fail(errc::mismatch, "column '" + spec.name + "' is " + data::describe(spec) +
                                  ", which XGBoost does not take: make it f32, f64 or an integer");
}

} // namespace

expected<std::vector<float>> features_of(const data::batch& samples, std::span<const std::string> columns) {
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

} // namespace troupe::xgboost

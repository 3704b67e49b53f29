#include "booster.hpp"

#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <xgboost/c_api.h>

namespace troupe::xgboost {

void check(int result) {
  if (result == 0)
    return;
  // The first line is the message; a stack trace follows.
  auto text = std::string{XGBGetLastError()};
  throw library_error{fmt::format("XGBoost: {}", text.substr(0, text.find("\nStack trace")))};
}

std::string version_text() {
  int major = 0;
  int minor = 0;
  int patch = 0;
  XGBoostVersion(&major, &minor, &patch);
  return fmt::format("{}.{}.{}", major, minor, patch);
}

// -- matrix -----------------------------------------------------------------------------------------------------------

matrix::matrix(std::span<const float> values, std::uint64_t rows, int threads) {
  auto columns = rows == 0 ? 0 : values.size() / rows;
  auto array = nlohmann::json{{"data", {reinterpret_cast<std::uintptr_t>(values.data()), true}},
                              {"shape", {rows, columns}},
                              {"typestr", "<f4"},
                              {"version", 3}};
  // Not JSON, which has no NaN; XGBoost's parser accepts it.
  auto how = fmt::format(R"({{"missing": NaN, "nthread": {}}})", threads);
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

// -- texts ------------------------------------------------------------------------------------------------------------

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

} // namespace troupe::xgboost

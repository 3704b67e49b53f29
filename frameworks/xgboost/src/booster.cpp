#include "booster.hpp"

#include <charconv>
#include <cmath>
#include <fmt/format.h>

namespace troupe::xgboost {

namespace {

/// Rows in memory, in the format of NumPy's array interface.
std::string array_of(std::span<const float> values, std::uint64_t rows, std::uint64_t columns) {
  return nlohmann::json{{"data", {reinterpret_cast<std::uintptr_t>(values.data()), true}},
                        {"shape", {rows, columns}},
                        {"typestr", "<f4"},
                        {"version", 3}}
      .dump();
}

} // namespace

// -- matrix -----------------------------------------------------------------------------------------------------------

matrix::matrix(library_ptr functions, std::span<const float> values, std::uint64_t rows, int threads)
    : library_(std::move(functions)) {
  auto columns = rows == 0 ? 0 : values.size() / rows;
  // Not JSON, which has no NaN; XGBoost's parser accepts it.
  auto how = fmt::format(R"({{"missing": NaN, "nthread": {}}})", threads);
  library_->check(
      library_->functions().XGDMatrixCreateFromDense(array_of(values, rows, columns).c_str(), how.c_str(), &handle_));
}

matrix::~matrix() {
  if (handle_ != nullptr)
    (void)library_->functions().XGDMatrixFree(handle_);
}

void matrix::set(const char* field, std::span<const float> values) {
  auto array = nlohmann::json{{"data", {reinterpret_cast<std::uintptr_t>(values.data()), true}},
                              {"shape", {values.size()}},
                              {"typestr", "<f4"},
                              {"version", 3}};
  library_->check(library_->functions().XGDMatrixSetInfoFromInterface(handle_, field, array.dump().c_str()));
}

// -- booster ----------------------------------------------------------------------------------------------------------

booster::booster(library_ptr functions, std::span<void* const> cached) : library_(std::move(functions)) {
  library_->check(library_->functions().XGBoosterCreate(cached.data(), cached.size(), &handle_));
}

booster::~booster() {
  if (handle_ != nullptr)
    (void)library_->functions().XGBoosterFree(handle_);
}

void booster::set(const std::string& name, const std::string& value) {
  library_->check(library_->functions().XGBoosterSetParam(handle_, name.c_str(), value.c_str()));
}

void booster::update(std::uint64_t round, const matrix& training) {
  library_->check(library_->functions().XGBoosterUpdateOneIter(handle_, static_cast<int>(round), training.handle()));
}

void booster::boost(std::uint64_t round, const matrix& training, std::uint64_t outputs, std::span<float> gradients,
                    std::span<float> hessians) {
  const auto& call = library_->optional();
  if (call.XGBoosterTrainOneIter == nullptr) {
    library_->check(
        call.XGBoosterBoostOneIter(handle_, training.handle(), gradients.data(), hessians.data(), gradients.size()));
    return;
  }
  auto rows = gradients.size() / outputs;
  library_->check(call.XGBoosterTrainOneIter(handle_, training.handle(), static_cast<int>(round),
                                             array_of(gradients, rows, outputs).c_str(),
                                             array_of(hessians, rows, outputs).c_str()));
}

metric_map booster::evaluate(std::uint64_t round, std::span<const std::pair<std::string, const matrix*>> sets) {
  std::vector<void*> handles;
  std::vector<const char*> names;
  for (const auto& [name, set] : sets) {
    handles.push_back(set->handle());
    names.push_back(name.c_str());
  }
  const char* text = nullptr;
  library_->check(library_->functions().XGBoosterEvalOneIter(handle_, static_cast<int>(round), handles.data(),
                                                             names.data(), handles.size(), &text));
  return parse_evaluation(text);
}

std::vector<std::byte> booster::save(std::string_view format) const {
  auto how = nlohmann::json{{"format", format}}.dump();
  std::uint64_t size = 0;
  const char* bytes = nullptr;
  library_->check(library_->functions().XGBoosterSaveModelToBuffer(handle_, how.c_str(), &size, &bytes));
  auto all = std::as_bytes(std::span{bytes, size});
  return {all.begin(), all.end()};
}

void booster::load(std::span<const std::byte> model) {
  library_->check(library_->functions().XGBoosterLoadModelFromBuffer(handle_, model.data(), model.size()));
}

booster::predictions booster::predict(const matrix& rows) {
  return predict(rows, R"({"type": 0, "training": false, "iteration_begin": 0, "iteration_end": 0,
                           "strict_shape": true})");
}

booster::predictions booster::training_scores(const matrix& training) {
  return predict(training, R"({"type": 1, "training": true, "iteration_begin": 0, "iteration_end": 0,
                               "strict_shape": true})");
}

booster::predictions booster::predict(const matrix& rows, const char* how) {
  const std::uint64_t* shape = nullptr;
  std::uint64_t dimensions = 0;
  const float* values = nullptr;
  library_->check(
      library_->functions().XGBoosterPredictFromDMatrix(handle_, rows.handle(), how, &shape, &dimensions, &values));
  std::uint64_t outputs = 1;
  for (std::uint64_t i = 1; i < dimensions; ++i)
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

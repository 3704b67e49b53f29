#include "booster.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>
#include <limits>

namespace troupe::lightgbm {

namespace {

constexpr const char* one_thread = "num_threads=1";

/// LightGBM counts rows and columns in 32 bits.
std::int32_t count_of(std::uint64_t number, const char* what) {
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()))
    throw exception{errc::invalid_argument, fmt::format("{} {} in one worker: LightGBM supports at most 2^31 - 1; use "
                                                        "more workers",
                                                        number, what)};
  return static_cast<std::int32_t>(number);
}

std::int32_t width_of(std::span<const float> values, std::uint64_t rows) {
  return count_of(rows == 0 ? 0 : values.size() / rows, "features");
}

/// Swaps rows and columns.
template <class To, class From>
std::vector<To> transposed(std::span<const From> values, std::size_t rows, std::size_t columns) {
  std::vector<To> result(values.size());
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t column = 0; column < columns; ++column)
      result[column * rows + row] = static_cast<To>(values[row * columns + column]);
  return result;
}

/// The number in "version=v4", one of the first lines of a model; 0 if there is none.
int format_of(std::string_view model) {
  constexpr std::string_view mark = "\nversion=v";
  model = model.substr(0, 256);
  auto at = model.find(mark);
  int result = 0;
  if (at != std::string_view::npos)
    (void)std::from_chars(model.data() + at + mark.size(), model.data() + model.size(), result);
  return result;
}

} // namespace

void check_format(std::string_view model, std::string_view rewritten) {
  auto stored = format_of(model);
  auto known = format_of(rewritten);
  if (stored > known)
    throw exception{errc::user_error,
                    fmt::format("the model has format v{}, and this LightGBM knows formats up to v{}", stored, known)};
}

// -- binned_set -------------------------------------------------------------------------------------------------------

binned_set::binned_set(library_ptr functions, std::span<const float> values, std::uint64_t rows,
                       const std::string& parameters, const binned_set* reference)
    : library_(std::move(functions)) {
  library_->check(library_->functions().LGBM_DatasetCreateFromMat(
      values.data(), type_f32, count_of(rows, "rows"), width_of(values, rows), 1, parameters.c_str(),
      reference == nullptr ? nullptr : reference->handle_, &handle_));
}

binned_set::~binned_set() {
  if (handle_ != nullptr)
    (void)library_->functions().LGBM_DatasetFree(handle_);
}

void binned_set::set(const char* field, std::span<const float> values) {
  library_->check(library_->functions().LGBM_DatasetSetField(handle_, field, values.data(),
                                                             count_of(values.size(), "numbers"), type_f32));
}

void binned_set::set_initial_scores(std::span<const double> scores) {
  library_->check(library_->functions().LGBM_DatasetSetField(handle_, "init_score", scores.data(),
                                                             count_of(scores.size(), "scores"), type_f64));
}

// -- booster ----------------------------------------------------------------------------------------------------------

booster::booster(library_ptr functions, const binned_set& training, const std::string& parameters, checker check)
    : library_(std::move(functions)), check_(std::move(check)) {
  check_(library_->functions().LGBM_BoosterCreate(training.handle(), parameters.c_str(), &handle_));
}

booster::booster(library_ptr functions, const std::string& model)
    : library_(std::move(functions)), check_([own = library_](int result) { own->check(result); }) {
  int rounds = 0;
  check_(library_->functions().LGBM_BoosterLoadModelFromString(model.c_str(), &rounds, &handle_));
}

booster::~booster() {
  if (handle_ != nullptr)
    (void)library_->functions().LGBM_BoosterFree(handle_);
}

void booster::add_evaluation(const binned_set& set) {
  check_(library_->functions().LGBM_BoosterAddValidData(handle_, set.handle()));
}

void booster::update() {
  int is_finished = 0;
  check_(library_->functions().LGBM_BoosterUpdateOneIter(handle_, &is_finished));
}

void booster::update(std::span<const float> gradients, std::span<const float> hessians, std::uint64_t outputs) {
  int is_finished = 0;
  auto rows = outputs == 0 ? 0 : gradients.size() / outputs;
  // LightGBM takes those of one output after the other.
  check_(library_->functions().LGBM_BoosterUpdateOneIterCustom(
      handle_, transposed<float>(gradients, rows, outputs).data(), transposed<float>(hessians, rows, outputs).data(),
      &is_finished));
}

std::vector<float> booster::current(std::size_t set, std::uint64_t rows) const {
  const auto& call = library_->functions();
  std::int64_t count = 0;
  check_(call.LGBM_BoosterGetNumPredict(handle_, static_cast<int>(set), &count));
  std::vector<double> values(static_cast<std::size_t>(count));
  check_(call.LGBM_BoosterGetPredict(handle_, static_cast<int>(set), &count, values.data()));
  return transposed<float>(std::span<const double>{values}, rows == 0 ? 0 : values.size() / rows, rows);
}

metric_map booster::evaluate(std::span<const std::string> names) const {
  const auto& call = library_->functions();
  int count = 0;
  check_(call.LGBM_BoosterGetEvalCounts(handle_, &count));
  constexpr std::size_t longest_name = 128;
  std::vector<std::array<char, longest_name>> metrics(static_cast<std::size_t>(count));
  std::vector<char*> places;
  for (auto& each : metrics)
    places.push_back(each.data());
  std::size_t longest = 0;
  check_(call.LGBM_BoosterGetEvalNames(handle_, count, &count, longest_name, &longest, places.data()));
  metric_map result;
  std::vector<double> values(metrics.size());
  for (std::size_t set = 0; set < names.size(); ++set) {
    // Set 0 is the training set.
    check_(call.LGBM_BoosterGetEval(handle_, static_cast<int>(set) + 1, &count, values.data()));
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
      result[fmt::format("{}-{}", names[set], metrics[i].data())] = values[i];
  }
  return result;
}

void booster::put_in_front(const booster& earlier) {
  check_(library_->functions().LGBM_BoosterMerge(handle_, earlier.handle_));
}

std::string booster::save() const {
  std::int64_t size = 0;
  auto text = std::string(1 << 16, '\0');
  auto write = [&] {
    check_(library_->functions().LGBM_BoosterSaveModelToString(
        handle_, 0, -1, 0, static_cast<std::int64_t>(text.size()), &size, text.data()));
  };
  write();
  // The reported size includes the terminating zero.
  if (static_cast<std::size_t>(size) > text.size()) {
    text.resize(static_cast<std::size_t>(size));
    write();
  }
  text.resize(static_cast<std::size_t>(std::max<std::int64_t>(size, 1) - 1));
  return text;
}

std::uint64_t booster::features() const {
  int count = 0;
  check_(library_->functions().LGBM_BoosterGetNumFeature(handle_, &count));
  return static_cast<std::uint64_t>(count);
}

booster::predictions booster::predict(std::span<const float> values, std::uint64_t rows, bool raw_scores) const {
  const auto& call = library_->functions();
  auto kind = raw_scores ? predict_raw_score : predict_normal;
  std::int64_t size = 0;
  check_(call.LGBM_BoosterCalcNumPredict(handle_, count_of(rows, "rows"), kind, 0, -1, &size));
  predictions result;
  result.values.resize(static_cast<std::size_t>(size));
  result.outputs = rows == 0 ? 0 : static_cast<std::uint64_t>(size) / rows;
  check_(call.LGBM_BoosterPredictForMat(handle_, values.data(), type_f32, count_of(rows, "rows"),
                                        width_of(values, rows), 1, kind, 0, -1, one_thread, &size,
                                        result.values.data()));
  return result;
}

} // namespace troupe::lightgbm

#include "monitoring/mlflow_queue.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace troupe::runtime {

namespace {

constexpr std::size_t longest_name = 250;

/// JSON has no number for what is not finite; protobuf's JSON has these texts.
nlohmann::json value_of(double value) {
  if (std::isnan(value))
    return "NaN";
  if (std::isinf(value))
    return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

} // namespace

std::string mlflow_name(const std::string& name) {
  constexpr std::string_view others = "_-. :/";
  auto result = name.substr(0, longest_name);
  for (auto& each : result)
    if (!is_letter_or_digit(each) && others.find(each) == std::string_view::npos)
      each = '_';
  return result;
}

void mlflow_queue::begin_after(std::uint64_t step) {
  known_ = step;
  std::erase_if(points_, [step](const point& x) { return x.step <= step; });
}

void mlflow_queue::add(const metric_row& row) {
  if (row.step.value > known_)
    for (const auto& [name, value] : row.values)
      add(mlflow_name(name), value, row.wall_us / 1000, row.step.value);
}

void mlflow_queue::add(std::string name, double value, std::uint64_t time_ms, std::uint64_t step) {
  if (points_.size() < most_waiting)
    points_.push_back({std::move(name), value, time_ms, step});
  else
    ++dropped_;
}

nlohmann::json mlflow_queue::batch() const {
  auto result = nlohmann::json::array();
  for (const auto& each : points_) {
    if (result.size() == most_in_batch)
      break;
    result.push_back(
        {{"key", each.name}, {"value", value_of(each.value)}, {"timestamp", each.time_ms}, {"step", each.step}});
  }
  return result;
}

void mlflow_queue::remove(std::size_t count, bool arrived) {
  const auto number = std::min(count, points_.size());
  points_.erase(points_.begin(), points_.begin() + static_cast<std::ptrdiff_t>(number));
  (arrived ? taken_ : dropped_) += number;
}

} // namespace troupe::runtime

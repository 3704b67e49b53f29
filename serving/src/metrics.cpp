#include "metrics.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>

namespace troupe::serving {

namespace {

constexpr std::array<double, 14> seconds_bounds{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                                0.1,    0.25,  0.5,    1,     2.5,  5,     10};
constexpr std::array<double, 11> rows_bounds{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};

template <class Value>
void append_metric(std::string& text, std::string_view name, std::string_view type, std::string_view help,
                   Value value) {
  fmt::format_to(std::back_inserter(text), "# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help, type, value);
}

} // namespace

void histogram::add(double value) noexcept {
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  counts_[static_cast<std::size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

void histogram::append_to(std::string& text, std::string_view name, std::string_view help) const {
  auto out = std::back_inserter(text);
  fmt::format_to(out, "# HELP {0} {1}\n# TYPE {0} histogram\n", name, help);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < bounds_.size(); ++i) {
    total += counts_[i].load(std::memory_order_relaxed);
    fmt::format_to(out, "{}_bucket{{le=\"{}\"}} {}\n", name, bounds_[i], total);
  }
  total += counts_[bounds_.size()].load(std::memory_order_relaxed);
  fmt::format_to(out, "{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, total, sum_.load());
}

metrics::metrics() : request_seconds_(seconds_bounds), batch_seconds_(seconds_bounds), batch_rows_(rows_bounds) {}

void metrics::count_response(int status) noexcept {
  responses_[static_cast<std::size_t>(std::clamp(status, 0, 599))].fetch_add(1, std::memory_order_relaxed);
}

void metrics::count_prediction(double seconds, std::uint64_t rows) noexcept {
  request_seconds_.add(seconds);
  rows_.fetch_add(rows, std::memory_order_relaxed);
}

void metrics::count_batch(double seconds, std::uint64_t rows) noexcept {
  batch_seconds_.add(seconds);
  batch_rows_.add(static_cast<double>(rows));
}

void metrics::count_reload(bool has_succeeded) noexcept {
  (has_succeeded ? reloads_ : failed_reloads_).fetch_add(1, std::memory_order_relaxed);
}

void metrics::count_lost_replica() noexcept {
  lost_replicas_.fetch_add(1, std::memory_order_relaxed);
}

std::string metrics::text(const metrics_view& now) const {
  std::string result = "# HELP troupe_serving_responses_total Responses by HTTP status.\n"
                       "# TYPE troupe_serving_responses_total counter\n";
  for (std::size_t code = 0; code < responses_.size(); ++code)
    if (const auto count = responses_[code].load(std::memory_order_relaxed); count > 0)
      fmt::format_to(std::back_inserter(result), "troupe_serving_responses_total{{code=\"{}\"}} {}\n", code, count);
  append_metric(result, "troupe_serving_rows_total", "counter", "Rows predicted for requests that were answered.",
                rows_.load());
  request_seconds_.append_to(result, "troupe_serving_request_seconds",
                             "From the last byte of a prediction's request to its result.");
  batch_seconds_.append_to(result, "troupe_serving_batch_seconds", "Time that the predictor took for a batch.");
  batch_rows_.append_to(result, "troupe_serving_batch_rows", "Rows in a batch.");
  append_metric(result, "troupe_serving_queued_requests", "gauge", "Requests that wait for a replica.",
                now.queued_requests);
  append_metric(result, "troupe_serving_queued_rows", "gauge", "Rows that wait for a replica.", now.queued_rows);
  append_metric(result, "troupe_serving_connections", "gauge", "Open connections.", now.connections);
  append_metric(result, "troupe_serving_replicas", "gauge", "Predictors that work at the same time.", now.replicas);
  append_metric(result, "troupe_serving_ready", "gauge", "1 if predictions are answered.", now.is_ready ? 1 : 0);
  append_metric(result, "troupe_serving_model_step", "gauge", "The step of the checkpoint that is served.",
                now.model_step);
  append_metric(result, "troupe_serving_reloads_total", "counter", "Models that have replaced another.",
                reloads_.load());
  append_metric(result, "troupe_serving_failed_reloads_total", "counter", "Models that could not be loaded.",
                failed_reloads_.load());
  append_metric(result, "troupe_serving_lost_replicas_total", "counter",
                "Replicas that were lost while they predicted, and had to load their model again.",
                lost_replicas_.load());
  return result;
}

} // namespace troupe::serving

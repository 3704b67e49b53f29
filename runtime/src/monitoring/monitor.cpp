#include "monitoring/monitor.hpp"

#include "monitoring/host_figures.hpp"
#include "monitoring/http_server.hpp"
#include "monitoring/mlflow_tracker.hpp"
#include "monitoring/prometheus_text.hpp"
#include "monitoring/run_metrics.hpp"
#include "net/connection.hpp"

#include <fmt/format.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::runtime {

namespace {

using clock = std::chrono::steady_clock;

/// A trainer that has not turned for this long is not well.
constexpr auto longest_silence = std::chrono::seconds{10};

/// The trainer's thread writes, those of the HTTP server read.
class run_pages {
 public:
  explicit run_pages(std::string name) : metrics_(std::move(name)) {}

  template <class Event>
  void on(const Event& event) {
    const auto lock = std::lock_guard{mutex_};
    metrics_.on(event);
  }

  void on(const actors::run_pulse& pulse) {
    const auto lock = std::lock_guard{mutex_};
    metrics_.on(pulse);
    heard_ = clock::now();
  }

  [[nodiscard]] http_server::pages pages(std::function<void(prometheus_text&)> more) {
    return {{"/metrics", [this, more = std::move(more)] { return metrics(more); }},
            {"/healthz", [this] { return health(); }},
            {"/readyz", [this] { return readiness(); }}};
  }

 private:
  run_figures figures() const {
    const auto lock = std::lock_guard{mutex_};
    return metrics_.figures();
  }

  http_answer metrics(const std::function<void(prometheus_text&)>& more) {
    prometheus_text others;
    host_.put(others);
    more(others);
    return {200, prometheus_text::content_type, to_prometheus(figures()) + others.text()};
  }

  http_answer health() const {
    const auto lock = std::lock_guard{mutex_};
    const auto silence = std::chrono::duration<double>(clock::now() - heard_);
    if (silence > longest_silence)
      return {503, http_answer{}.content_type,
              fmt::format("the trainer has not turned for {:.0f} s\n", silence.count())};
    return {200, http_answer{}.content_type, "ok\n"};
  }

  http_answer readiness() const {
    const auto activity = figures().pulse.activity;
    return {activity == actors::time_use::training ? 200 : 503, http_answer{}.content_type,
            fmt::format("{}\n", to_string(activity))};
  }

  mutable std::mutex mutex_;
  run_metrics metrics_;
  clock::time_point heard_ = clock::now();
  host_figures host_;
};

class monitor : public actors::run_monitor {
 public:
  monitor(const trainer_config& config, std::function<void(run_notice)> tell)
      : tell_(std::move(tell)), pages_(config.run.name) {
    if (!config.monitoring.mlflow_tracking_uri.empty())
      mlflow_.emplace(config, [this](bool is_warning, std::string text) {
        pass_on({{}, is_warning, std::move(text)});
      });
  }

  expected<void> listen(const endpoint& where) {
    TROUPE_TRY(server_, http_server::open(where, pages_.pages([this](prometheus_text& out) { put_mlflow(out); })));
    tell_({{}, false, fmt::format("metrics are at http://{}/metrics", to_string(server_->address()))});
    if (!is_loopback(where.host))
      tell_({{},
             true,
             fmt::format("whoever reaches {} can read this run's metrics, its name and what it does "
                         "(monitoring.metrics_address)",
                         to_string(server_->address()))});
    return {};
  }

  void on(const actors::run_event& event) override {
    pages_.on(event);
    if (const auto* started = std::get_if<run_started>(&event); started != nullptr && mlflow_)
      mlflow_->on(*started);
  }

  void on(const metrics_batch& batch) override {
    pages_.on(batch);
    if (mlflow_)
      mlflow_->on(batch);
  }

  void on(const actors::run_pulse& pulse) override { pages_.on(pulse); }

  std::vector<run_notice> end(const run_result& result) override {
    if (!mlflow_)
      return {};
    {
      const auto lock = std::lock_guard{mutex_};
      is_ending_ = true;
    }
    mlflow_->on(result);
    // It tells nobody after this.
    mlflow_->finish();
    return std::exchange(last_, {});
  }

 private:
  void put_mlflow(prometheus_text& out) const {
    if (!mlflow_)
      return;
    const auto figures = mlflow_->so_far();
    out.counter("troupe_mlflow_points_total", "Points of metrics for MLflow, by what became of them.");
    out.sample(static_cast<double>(figures.taken), {{"outcome", "taken"}});
    out.sample(static_cast<double>(figures.dropped), {{"outcome", "dropped"}});
    out.gauge("troupe_mlflow_points_waiting", "Points of metrics that MLflow has not taken yet.",
              static_cast<double>(figures.waiting));
  }

  /// From the tracker's thread.
  void pass_on(run_notice notice) {
    const auto lock = std::lock_guard{mutex_};
    if (is_ending_)
      last_.push_back(std::move(notice));
    else
      tell_(std::move(notice));
  }

  std::function<void(run_notice)> tell_;
  std::mutex mutex_;
  bool is_ending_ = false;
  std::vector<run_notice> last_;
  run_pages pages_;
  std::optional<mlflow_tracker> mlflow_;
  /// Ends before what its pages read.
  std::unique_ptr<http_server> server_;
};

} // namespace

expected<std::unique_ptr<actors::run_monitor>> open_monitor(const trainer_config& config,
                                                            std::function<void(run_notice)> tell) {
  const auto& how = config.monitoring;
  if (how.metrics_address.empty() && how.mlflow_tracking_uri.empty())
    return nullptr;
  auto result = std::make_unique<monitor>(config, std::move(tell));
  if (!how.metrics_address.empty()) {
    TROUPE_TRY(const auto where, parse_endpoint(how.metrics_address));
    if (auto listens = result->listen(where); !listens)
      return fail(listens.error().code,
                  "monitoring.metrics_address (--metrics): " + std::move(listens.error().message));
  }
  return result;
}

} // namespace troupe::runtime

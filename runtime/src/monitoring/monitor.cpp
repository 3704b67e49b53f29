#include "monitoring/monitor.hpp"

#include "monitoring/host_figures.hpp"
#include "monitoring/http_server.hpp"
#include "monitoring/prometheus_text.hpp"
#include "monitoring/run_metrics.hpp"
#include "net/connection.hpp"

#include <fmt/format.h>
#include <troupe/config.hpp>

#include <chrono>
#include <mutex>
#include <string>
#include <utility>

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

  [[nodiscard]] http_server::pages pages() {
    return {{"/metrics", [this] { return metrics(); }},
            {"/healthz", [this] { return health(); }},
            {"/readyz", [this] { return readiness(); }}};
  }

 private:
  run_figures figures() const {
    const auto lock = std::lock_guard{mutex_};
    return metrics_.figures();
  }

  http_answer metrics() {
    prometheus_text others;
    host_.put(others);
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
      : tell_(std::move(tell)), pages_(config.run.name) {}

  expected<void> listen(const endpoint& where) {
    TROUPE_TRY(server_, http_server::open(where, pages_.pages()));
    tell_({{}, false, fmt::format("metrics are at http://{}/metrics", to_string(server_->address()))});
    if (!is_loopback(where.host))
      tell_({{},
             true,
             fmt::format("whoever reaches {} can read this run's metrics, its name and what it does "
                         "(monitoring.metrics_address)",
                         to_string(server_->address()))});
    return {};
  }

  void on(const actors::run_event& event) override { pages_.on(event); }
  void on(const metrics_batch& batch) override { pages_.on(batch); }
  void on(const actors::run_pulse& pulse) override { pages_.on(pulse); }

 private:
  std::function<void(run_notice)> tell_;
  run_pages pages_;
  /// Ends before what its pages read.
  std::unique_ptr<http_server> server_;
};

} // namespace

expected<std::unique_ptr<actors::run_monitor>> open_monitor(const trainer_config& config,
                                                            std::function<void(run_notice)> tell) {
  const auto& how = config.monitoring;
  if (how.metrics_address.empty())
    return nullptr;
  auto result = std::make_unique<monitor>(config, std::move(tell));
  TROUPE_TRY(const auto where, parse_endpoint(how.metrics_address));
  if (auto listens = result->listen(where); !listens)
    return fail(listens.error().code, "monitoring.metrics_address (--metrics): " + std::move(listens.error().message));
  return result;
}

} // namespace troupe::runtime

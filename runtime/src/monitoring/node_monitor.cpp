#include "monitoring/node_monitor.hpp"

#include <fmt/format.h>

#include <utility>

namespace troupe::runtime {

namespace {

using clock = std::chrono::steady_clock;

/// A node that has not turned for this long is not well: its drivers take it for silent.
constexpr auto longest_node_silence = std::chrono::seconds{10};

} // namespace

expected<void> node_monitor::listen(const endpoint& where) {
  TROUPE_TRY(server_, http_server::open(where, {{"/metrics", [this] { return metrics(); }},
                                                {"/healthz", [this] { return health(); }},
                                                {"/readyz", [this] { return readiness(); }}}));
  return {};
}

void node_monitor::publish(actors::node_figures figures) {
  const auto lock = std::lock_guard{mutex_};
  latest_ = std::move(figures);
  heard_ = clock::now();
}

http_answer node_monitor::metrics() {
  auto figures = [this] {
    const auto lock = std::lock_guard{mutex_};
    return latest_;
  }();
  prometheus_text host;
  host_.put(host);
  const auto lock = std::lock_guard{looking_};
  metrics_.look(std::move(figures), usage_of);
  return {200, prometheus_text::content_type, to_prometheus(metrics_) + host.text()};
}

http_answer node_monitor::health() const {
  const auto lock = std::lock_guard{mutex_};
  const auto silence = std::chrono::duration<double>(clock::now() - heard_);
  if (silence > longest_node_silence)
    return {503, http_answer{}.content_type, fmt::format("the node has not turned for {:.0f} s\n", silence.count())};
  return {200, http_answer{}.content_type, "ok\n"};
}

http_answer node_monitor::readiness() const {
  const auto lock = std::lock_guard{mutex_};
  if (latest_.is_draining)
    return {503, http_answer{}.content_type, "the node is going away\n"};
  return {200, http_answer{}.content_type, "takes workers\n"};
}

} // namespace troupe::runtime

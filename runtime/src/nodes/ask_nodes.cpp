#include <troupe/runtime/nodes.hpp>

#include "net/connection.hpp"
#include "nodes/driver_keys.hpp"

#include <troupe/actor_system.hpp>
#include <troupe/actors/error_conversion.hpp>

#include <caf/all.hpp>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

namespace troupe::runtime {

namespace {

/// An actor system that lives for some questions to nodes.
class asking_system {
 public:
  explicit asking_system(const cluster_config& how) : how_(how) {
    init_meta_objects();
    config_.set("caf.scheduler.max-threads", 1);
    secure(config_, std::nullopt);
    system_.emplace(config_);
  }

  template <class Question>
  expected<node_report> ask(const std::string& address, const Question& question) {
    TROUPE_TRY(const auto where, parse_endpoint(address));
    TROUPE_TRY(const auto keys, keys_towards(where, how_));
    TROUPE_TRY(const auto node, connect(*system_, where, keys, how_.connect_timeout));
    auto result = expected<node_report>{};
    caf::scoped_actor self{*system_};
    self->request(node, how_.connect_timeout, question)
        .receive([&](node_report& report) { result = std::move(report); },
                 [&](const caf::error& why) {
                   const auto ours = actors::from_caf(why);
                   result = fail(ours.code, fmt::format("node {} does not answer: {}", address, ours.message));
                 });
    return result;
  }

 private:
  const cluster_config& how_;
  caf::actor_system_config config_;
  std::optional<caf::actor_system> system_;
};

template <class Question>
expected<node_report> ask_one(const std::string& address, const Question& question, const cluster_config& how) {
  return asking_system{how}.ask(address, question);
}

} // namespace

std::vector<asked_node> ask_nodes(const std::vector<std::string>& addresses, const cluster_config& how) {
  std::vector<asked_node> result;
  for (const auto& each : addresses)
    result.push_back({each, fail(errc::unreachable, "it was not asked")});
  asking_system system{how};
  std::vector<std::jthread> threads;
  for (auto& each : result)
    threads.emplace_back([&] { each.report = system.ask(each.address, node_question{}); });
  threads.clear();
  return result;
}

expected<node_report> drain(const std::string& address, std::chrono::milliseconds patience, const cluster_config& how) {
  return ask_one(address, drain_node{static_cast<std::uint64_t>(patience.count())}, how);
}

expected<node_report> resume(const std::string& address, const cluster_config& how) {
  return ask_one(address, resume_node{}, how);
}

std::uint32_t workers_of(const node_report& node) {
  std::uint32_t result = 0;
  for (const auto& each : node.runs)
    result += each.workers;
  return result;
}

std::string_view state_of(const asked_node& node) {
  if (!node.report) {
    const auto why = node.report.error().code;
    if (why == errc::program_mismatch || why == errc::unsupported_version)
      return "other version";
    return why == errc::not_authenticated ? "refuses" : "silent";
  }
  if (node.report->protocol != protocol_version)
    return "other version";
  switch (node.report->phase) {
  case node_phase::available:
    return "available";
  case node_phase::drained:
    return workers_of(*node.report) > 0 ? "draining" : "drained";
  case node_phase::leaving:
    return "leaving";
  }
  return "available";
}

std::string day_of(std::int64_t seconds) {
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

nlohmann::ordered_json to_json(const asked_node& node) {
  using json = nlohmann::ordered_json;
  json result{{"address", node.address}, {"state", state_of(node)}};
  if (!node.report) {
    result["problem"] = node.report.error().message;
    return result;
  }
  const auto& what = *node.report;
  auto runs = json::array();
  for (const auto& run : what.runs)
    runs.push_back({{"run", run.run}, {"name", run.name}, {"workers", run.workers}});
  result.update({{"host", what.host},
                 {"pid", what.pid},
                 {"cpus", what.offered.cpus},
                 {"gpus", what.offered.gpus},
                 {"free_gpus", what.free.gpus},
                 {"memory_bytes", what.offered.memory_bytes},
                 {"free_memory_bytes", what.free.memory_bytes},
                 {"labels", what.labels},
                 {"workers", workers_of(what)},
                 {"runs", std::move(runs)},
                 {"version", what.version},
                 {"certificate_expires", what.certificate_expires ? json(day_of(*what.certificate_expires)) : json{}}});
  return result;
}

} // namespace troupe::runtime

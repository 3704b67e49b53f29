#include "trainer/run_events.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace troupe::actors {

using json = nlohmann::ordered_json;

std::optional<json> event_of(const run_started& x) {
  auto workers = json::array();
  for (const auto& each : x.workers)
    workers.push_back({{"rank", each.rank.value}, {"host", each.host}, {"pid", each.pid}});
  return json{{"event", "started"},
              {"run", x.run.value},
              {"resumed_from_step", x.resumed_from_step},
              {"workers", std::move(workers)}};
}

std::optional<json> event_of(const run_progress&) {
  return std::nullopt;
}

std::optional<json> event_of(const checkpoint_saved& x) {
  return json{{"event", "checkpoint"},
              {"step", x.step.value},
              {"path", x.path},
              {"bytes", x.size_bytes},
              {"seconds", x.seconds}};
}

std::optional<json> event_of(const checkpoint_skipped& x) {
  return json{{"event", "checkpoint_skipped"},
              {"step", x.step.value},
              {"cause", "checkpoint.max_in_flight are still being written"}};
}

std::optional<json> event_of(const checkpoint_failed& x) {
  return json{{"event", "checkpoint_failed"},
              {"step", x.step.value},
              {"code", to_string(x.reason.code)},
              {"cause", x.reason.message}};
}

std::optional<json> event_of(const generation_record& x) {
  return json{{"event", "generation"},
              {"generation", x.generation.value},
              {"attempt", x.attempt},
              {"workers", x.workers},
              {"step", x.commit_point.value},
              {"steps_redone", x.steps_redone},
              {"interrupted_step", x.interrupted_step},
              {"cause", x.reason}};
}

std::optional<json> event_of(const run_notice& x) {
  if (!x.warning)
    return std::nullopt;
  return json{{"event", "warning"}, {"text", x.text}};
}

json event_of(const pause_row& x, rank_id rank) {
  return {{"event", "pause"},
          {"generation", x.generation.value},
          {"rank", rank.value},
          {"step", x.step.value},
          {"seconds", static_cast<double>(x.pause_us) / 1e6}};
}

json event_of(const not_finite_row& x, rank_id rank) {
  json result{{"event", "not_finite"},
              {"metric", x.metric},
              {"value", fmt::to_string(x.value)},
              {"step", x.step.value},
              {"rank", rank.value}};
  if (x.shard)
    result["shard"] = x.shard->value;
  return result;
}

json event_of(const failure_record& x) {
  return {{"event", "failure"},
          {"worker", x.worker.value},
          {"rank", x.rank.value},
          {"host", x.host},
          {"pid", x.pid},
          {"generation", x.generation.value},
          {"step", x.step.value},
          {"code", to_string(x.reason.code)},
          {"cause", x.reason.message},
          {"consequence", x.consequence}};
}

json event_of(const run_result& x) {
  json result{{"event", "ended"}, {"status", to_string(x.status)}, {"step", x.steps}, {"seconds", x.seconds_total}};
  if (x.reason.code != errc::none)
    result.update({{"code", to_string(x.reason.code)}, {"cause", x.reason.message}});
  if (x.goodput.steps > 0)
    result["goodput"] = json::parse(to_json(x.goodput));
  return result;
}

json event_of(const run_goodput& x) {
  return {{"event", "goodput"}, {"goodput", json::parse(to_json(x))}};
}

std::vector<failure_record> new_failures::take(const std::vector<failure_record>& all) {
  std::vector<failure_record> result;
  std::map<worker_id, std::size_t> seen;
  for (const auto& each : all)
    if (++seen[each.worker] > known_[each.worker])
      result.push_back(each);
  known_ = std::move(seen);
  return result;
}

} // namespace troupe::actors

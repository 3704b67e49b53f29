#include <troupe/result.hpp>

#include <nlohmann/json.hpp>

namespace troupe {

std::string to_string(run_status status) {
  switch (status) {
  case run_status::completed:
    return "completed";
  case run_status::stopped:
    return "stopped";
  case run_status::failed:
    return "failed";
  }
  return "invalid";
}

namespace {

nlohmann::ordered_json described(const kept_checkpoint& x) {
  nlohmann::ordered_json out{{"step", x.step.value}, {"path", x.path}};
  out["score"] = x.score ? nlohmann::ordered_json(*x.score) : nlohmann::ordered_json{};
  out["metrics"] = nlohmann::ordered_json(x.metrics);
  return out;
}

nlohmann::ordered_json described(const program_span& x) {
  return {{"first_step", x.first_step.value},
          {"last_step", x.last_step.value},
          {"build_id", x.build_id},
          {"configuration_digest", x.configuration_digest},
          {"libraries", nlohmann::ordered_json::parse(x.libraries, nullptr, false)}};
}

/// Null without a mirror.
nlohmann::ordered_json described(const mirror_summary& x) {
  if (x.place.empty())
    return {};
  nlohmann::ordered_json out{{"place", x.place},
                             {"checkpoints", x.checkpoints},
                             {"superseded", x.superseded},
                             {"failed_attempts", x.failed_attempts}};
  out["lacks"] = x.reason.code == errc::none ? nlohmann::ordered_json{} : nlohmann::ordered_json(x.reason.message);
  return out;
}

nlohmann::ordered_json described(const run_goodput& x) {
  nlohmann::ordered_json lost;
  for_each_cause(x.lost, [&lost](const char* cause, double seconds) { lost[cause] = seconds; });
  return {{"ratio", x.ratio()}, {"seconds", x.seconds},           {"productive", x.productive_seconds},
          {"steps", x.steps},   {"steps_redone", x.steps_redone}, {"lost", std::move(lost)}};
}

} // namespace

std::string to_json(const run_goodput& goodput) {
  return described(goodput).dump();
}

std::string to_json(const run_result& result) {
  using json = nlohmann::ordered_json;
  json out;
  out["run"] = result.run.value;
  out["name"] = result.name;
  out["status"] = to_string(result.status);
  out["steps"] = result.steps;
  out["resumed_from_step"] = result.resumed_from_step;
  out["metrics"] = json(result.metrics);
  out["metrics_from"] = json(result.metrics_from);
  out["state_sha256"] = result.state_sha256;
  out["exact"] = result.exact;
  out["one_program"] = result.programs.size() <= 1;
  out["programs"] = json::array();
  for (const auto& each : result.programs)
    out["programs"].push_back(described(each));
  out["loaded_from"] = result.loaded_from.empty() ? json{} : json(result.loaded_from);
  out["latest_checkpoint"] = result.latest_checkpoint;
  out["best_checkpoint"] = result.best_checkpoint ? described(*result.best_checkpoint) : json{};
  out["checkpoints"] = json::array();
  for (const auto& each : result.checkpoints)
    out["checkpoints"].push_back(described(each));
  out["due_checkpoints"] = {{"taken", result.due_checkpoints.taken},
                            {"skipped", result.due_checkpoints.skipped},
                            {"failed", result.due_checkpoints.failed}};
  out["path"] = result.path;
  out["mirror"] = described(result.mirror);
  out["error"] = nullptr;
  if (result.reason.code != errc::none)
    out["error"] = {{"code", to_string(result.reason.code)}, {"message", result.reason.message}};
  out["failures"] = json::array();
  for (const auto& x : result.failures)
    out["failures"].push_back({{"worker", x.worker.value},
                               {"pid", x.pid},
                               {"rank", x.rank.value},
                               {"generation", x.generation.value},
                               {"step", x.step.value},
                               {"host", x.host},
                               {"code", to_string(x.reason.code)},
                               {"message", x.reason.message},
                               {"consequence", x.consequence},
                               {"last_lines", x.last_lines}});
  out["restarts"] = result.restarts;
  out["generations"] = json::array();
  for (const auto& x : result.generations)
    out["generations"].push_back({{"generation", x.generation.value},
                                  {"attempt", x.attempt},
                                  {"workers", x.workers},
                                  {"commit_point_step", x.commit_point.value},
                                  {"steps_redone", x.steps_redone},
                                  {"interrupted_step", x.interrupted_step},
                                  {"pause_seconds", x.pause_seconds},
                                  {"reason", x.reason}});
  out["workers"] = json::array();
  for (const auto& x : result.workers)
    out["workers"].push_back(
        {{"worker", x.worker.value}, {"rank", x.rank.value}, {"host", x.host}, {"node", x.node}, {"pid", x.pid}});
  out["seconds"] = {{"to_first_step", result.seconds_to_first_step}, {"total", result.seconds_total}};
  out["goodput"] = described(result.goodput);
  // A worker's last lines may hold any bytes.
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

} // namespace troupe

#include <troupe/actors/decisions/run_status_model.hpp>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace troupe::actors {

using json = nlohmann::ordered_json;

namespace {

json to_json(const std::vector<worker_info>& workers) {
  auto result = json::array();
  for (const auto& each : workers)
    result.push_back({{"rank", each.rank.value},
                      {"worker", each.worker.value},
                      {"host", each.host},
                      {"node", each.node},
                      {"pid", each.pid}});
  return result;
}

void add(json& to, const run_progress& x) {
  to["steps"] = x.steps;
  to["samples_per_second"] = x.samples_per_second;
  to["batch_samples"] = x.batch_samples;
  to["seconds_elapsed"] = x.seconds_elapsed;
  to["seconds_left"] = x.seconds_left;
  to["metrics"] = x.metrics;
  to["metrics_from"] = x.metrics_from;
}

} // namespace

std::string_view to_string(run_activity activity) noexcept {
  switch (activity) {
  case run_activity::starting:
    return "starting";
  case run_activity::running:
    return "running";
  case run_activity::pausing:
    return "pausing";
  case run_activity::paused:
    return "paused";
  case run_activity::held:
    return "held";
  case run_activity::stopping:
    return "stopping";
  case run_activity::ending:
    return "ending";
  }
  return "unknown";
}

std::string utc_text(std::chrono::system_clock::time_point when) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(when.time_since_epoch()).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(static_cast<std::time_t>(ms / 1000)), ms % 1000);
}

void run_status_model::on(const run_condition& condition, time_point now) {
  if (condition.activity != condition_.activity)
    since_ = now;
  condition_ = condition;
}

void run_status_model::on(const checkpoint_saved& saved, time_point now) {
  checkpoint_ = last_checkpoint{saved, now};
}

void run_status_model::on(const run_result& result, time_point now) {
  result_ = result;
  since_ = now;
}

json run_status_model::status(time_point now) const {
  json result{{"name", who_.name},
              {"run", who_.run.value},
              {"path", who_.path},
              {"state", result_ ? to_string(result_->status) : std::string{to_string(condition_.activity)}},
              {"since", utc_text(since_)},
              {"seconds_in_state", std::max(0.0, std::chrono::duration<double>(now - since_).count())}};
  if (result_ && result_->reason.code != errc::none)
    result.update({{"code", to_string(result_->reason.code)}, {"cause", result_->reason.message}});
  result["driver"] = {{"host", who_.host}, {"pid", who_.pid}, {"started", utc_text(who_.started)}};
  result["step"] = result_                                       ? result_->steps
                   : condition_.furthest.value > 0 || !progress_ ? condition_.furthest.value
                                                                 : progress_->step;
  if (progress_)
    add(result, *progress_);
  result["workers_wanted"] = {{"min", condition_.wanted.min}, {"max", condition_.wanted.max}};
  result["workers"] = to_json(condition_.workers);
  result["generation"] = condition_.generation.value;
  result["attempt"] = condition_.attempt;
  result["failures"] = condition_.failures;
  if (!condition_.last_failure.empty())
    result["last_failure"] = condition_.last_failure;
  if (checkpoint_)
    result["checkpoint"] = {{"step", checkpoint_->what.step.value},
                            {"path", checkpoint_->what.path},
                            {"bytes", checkpoint_->what.size_bytes},
                            {"time", utc_text(checkpoint_->when)}};
  if (result_)
    result.update({{"latest_checkpoint", result_->latest_checkpoint}, {"exit_code", result_->exit_code()}});
  if (who_.ends_by && !result_)
    result["seconds_to_time_limit"] = std::max(0.0, std::chrono::duration<double>(*who_.ends_by - now).count());
  return result;
}

} // namespace troupe::actors

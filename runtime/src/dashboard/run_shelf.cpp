#include "dashboard/run_shelf.hpp"

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/runtime/control_client.hpp>
#include <troupe/runtime/control_socket.hpp>
#include <troupe/runtime/found_run.hpp>
#include <troupe/runtime/worker_log.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

namespace troupe::runtime {

namespace fs = std::filesystem;
using ordered = nlohmann::ordered_json;
using namespace std::chrono_literals;

namespace {

constexpr auto fresh_for = 500ms;
/// What nobody has asked for in this time is forgotten.
constexpr auto kept_for = 60s;
constexpr std::size_t most_runs = 200;
constexpr std::uint64_t log_lines = 400;
constexpr std::size_t log_bytes = std::size_t{256} << 10;

std::string name_of(const fs::path& run) {
  return run.filename().empty() ? run.parent_path().filename().string() : run.filename().string();
}

std::optional<actors::control_request> request_of(const std::string& what) {
  if (what == "stop")
    return stop_request{false};
  if (what == "stop-now")
    return stop_request{true};
  if (what == "pause")
    return pause_request{};
  if (what == "resume")
    return resume_request{};
  if (what == "checkpoint")
    return checkpoint_request{};
  return std::nullopt;
}

ordered goodput_of_result(const fs::path& run) {
  auto file = std::ifstream{run / "result.json"};
  const auto result = nlohmann::json::parse(file, nullptr, false);
  if (!result.is_object() || !result.contains("goodput") || !result["goodput"].is_object())
    return nullptr;
  return ordered(result["goodput"].value("ratio", nlohmann::json{}));
}

} // namespace

expected<std::vector<fs::path>> run_shelf::list() const {
  auto runs = list_runs(storage_);
  auto code = std::error_code{};
  // It is made with the first run.
  return runs || fs::exists(storage_, code) ? std::move(runs) : expected<std::vector<fs::path>>{};
}

expected<fs::path> run_shelf::find(const std::string& name) const {
  TROUPE_TRY(const auto runs, list());
  for (const auto& each : runs)
    if (name_of(fs::absolute(each)) == name)
      return each;
  return fail(errc::not_found, fmt::format("there is no run {} in {}", name, storage_.string()));
}

ordered run_shelf::line_of(const fs::path& run) {
  auto code = std::error_code{};
  const auto result_at = fs::last_write_time(run / "result.json", code);
  const auto has_result = !code && !fs::exists(run / control_socket_name, code);
  if (const auto known = ended_.find(run); has_result && known != ended_.end() && known->second.first == result_at)
    return known->second.second;
  auto status = status_of_run(run);
  auto line = ordered{{"name", name_of(fs::absolute(run))}};
  for (const auto* key : {"state", "since", "step", "steps", "samples_per_second", "seconds_left", "seconds_elapsed",
                          "metrics", "failures", "last_failure", "cause", "code", "hint", "driver"})
    if (status.contains(key))
      line[key] = std::move(status[key]);
  if (status.contains("workers") && status["workers"].is_array())
    line["workers"] = status["workers"].size();
  if (has_result) {
    line["goodput"] = goodput_of_result(run);
    if (line.contains("driver") == false)
      ended_[run] = {result_at, line};
  }
  return line;
}

ordered run_shelf::overview() {
  const auto lock = std::lock_guard{overview_mutex_};
  if (clock::now() - overview_at_ < fresh_for)
    return overview_;
  auto result = ordered{{"storage", storage_.string()}, {"runs", ordered::array()}};
  if (const auto runs = list()) {
    for (const auto& each : *runs)
      if (result["runs"].size() < most_runs)
        result["runs"].push_back(line_of(each));
    result["more"] = runs->size() - result["runs"].size();
    std::erase_if(ended_, [&](const auto& known) { return std::ranges::find(*runs, known.first) == runs->end(); });
  } else {
    result["error"] = runs.error().message;
  }
  overview_ = std::move(result);
  overview_at_ = clock::now();
  return overview_;
}

std::shared_ptr<run_shelf::told_run> run_shelf::reader_of(const fs::path& run) {
  const auto lock = std::lock_guard{mutex_};
  std::erase_if(readers_, [](const auto& each) { return clock::now() - each.second->asked_at > kept_for; });
  auto& result = readers_[run];
  if (!result)
    result = std::make_shared<told_run>(run);
  result->asked_at = clock::now();
  return result;
}

expected<ordered> run_shelf::story(const std::string& name) {
  TROUPE_TRY(const auto run, find(name));
  const auto told = reader_of(run);
  const auto lock = std::lock_guard{told->mutex};
  if (clock::now() - told->read_at < fresh_for)
    return told->story;
  auto status = status_of_run(run);
  told->reader.read();
  told->story = told->reader.to_json();
  told->story["status"] = std::move(status);
  told->read_at = clock::now();
  return told->story;
}

expected<std::string> run_shelf::log(const std::string& name, std::uint32_t worker) {
  TROUPE_TRY(const auto run, find(name));
  auto log = worker_log{log_path(run, worker)};
  log.skip_to_last(log_lines);
  auto result = std::string{};
  const auto add = [&result](const std::string& line) {
    result += line;
    result += '\n';
    if (result.size() > 2 * log_bytes)
      result.erase(0, result.size() - log_bytes);
  };
  log.read(add);
  log.flush(add);
  if (result.size() > log_bytes)
    result.erase(0, result.size() - log_bytes);
  return result;
}

expected<ordered> run_shelf::steer(const std::string& name, const std::string& what) {
  const auto request = request_of(what);
  if (!request)
    return fail(errc::invalid_argument,
                fmt::format("'{}' is none of stop, stop-now, pause, resume and checkpoint", what));
  TROUPE_TRY(const auto run, find(name));
  auto stream = connect_to_run(run);
  if (!stream)
    return fail(errc::unreachable, explain_absence(run, stream.error().message).text);
  auto driver = control_client{collectives::unique_fd{*stream}};
  return driver.ask(*request, 10s);
}

} // namespace troupe::runtime

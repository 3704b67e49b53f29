#include <troupe/runtime/found_run.hpp>

#include <troupe/actors/decisions/run_status_model.hpp>
#include <troupe/actors/run_lock.hpp>
#include <troupe/result.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

namespace troupe::runtime {

namespace fs = std::filesystem;
using ordered = nlohmann::ordered_json;

namespace {

bool is_run(const fs::path& path) {
  auto code = std::error_code{};
  return fs::exists(path / "run.json", code) || fs::exists(path / ".lock", code);
}

/// A driver makes it before it has nodes.
bool is_reserved(const fs::path& path) {
  auto code = std::error_code{};
  return fs::is_directory(path, code) && fs::is_empty(path, code) && !code;
}

nlohmann::json object_in(const fs::path& path) {
  auto file = std::ifstream{path};
  auto result = nlohmann::json::parse(file, nullptr, false);
  return result.is_object() ? result : nlohmann::json::object();
}

template <class T>
T value_of(const nlohmann::json& from, const char* key, T otherwise) {
  try {
    return from.value(key, otherwise);
  } catch (const nlohmann::json::exception&) {
    return otherwise;
  }
}

std::chrono::system_clock::time_point written_at(const fs::path& path) {
  auto code = std::error_code{};
  const auto when = fs::last_write_time(path, code);
  if (code)
    return {};
  return std::chrono::time_point_cast<std::chrono::system_clock::duration>(std::chrono::file_clock::to_sys(when));
}

std::string_view word_for(absence why, const nlohmann::json& result, std::string& storage) {
  switch (why) {
  case absence::ended:
    storage = value_of(result, "status", std::string{"ended"});
    return storage;
  case absence::not_begun:
    return "not begun";
  case absence::lost:
    return "driver lost";
  case absence::elsewhere:
    return "elsewhere";
  case absence::deaf:
    return "no answer";
  }
  return "unknown";
}

/// The metrics of rank 0, and the last step of any.
void add_metrics(ordered& to, const fs::path& run) {
  constexpr std::size_t enough = std::size_t{256} << 10;
  auto step = std::uint64_t{0};
  auto metrics = ordered::object();
  for (const auto& row : last_rows(run / "metrics.jsonl", enough)) {
    step = std::max(step, value_of(row, "step", std::uint64_t{0}));
    if (value_of(row, "rank", std::uint64_t{0}) != 0)
      continue;
    for (const auto& [name, value] : row.items())
      if (name != "step" && name != "rank" && name != "seconds" && name != "time" && value.is_number())
        metrics[name] = value;
  }
  to["step"] = step;
  to["metrics"] = std::move(metrics);
}

/// What the last events say of members and checkpoints.
void add_events(ordered& to, const fs::path& run) {
  constexpr std::size_t enough = std::size_t{1} << 20;
  for (const auto& event : last_rows(run / "events.jsonl", enough)) {
    const auto kind = value_of(event, "event", std::string{});
    if (kind == "checkpoint")
      to["checkpoint"] = {{"step", value_of(event, "step", std::uint64_t{0})},
                          {"path", value_of(event, "path", std::string{})},
                          {"time", value_of(event, "time", std::string{})}};
    else if (kind == "failure" && !value_of(event, "consequence", false))
      to["last_failure"] = value_of(event, "cause", std::string{});
  }
}

} // namespace

expected<fs::path> find_run(const std::string& given, const fs::path& storage) {
  for (const auto& path : {fs::path{given}, storage / given})
    if (is_run(path))
      return path;
  for (const auto& path : {fs::path{given}, storage / given})
    if (is_reserved(path))
      return path;
  return fail(errc::not_found,
              fmt::format("there is no run {}: neither {} nor {} is the directory of one ('troupe runs "
                          "DIRECTORY' lists those in a storage directory, and --storage names it)",
                          given, given, (storage / given).string()));
}

expected<std::vector<fs::path>> list_runs(const fs::path& storage) {
  if (is_run(storage))
    return std::vector{storage};
  auto code = std::error_code{};
  std::vector<std::pair<std::chrono::system_clock::time_point, fs::path>> found;
  for (auto entries = fs::directory_iterator{storage, code}; !code && entries != fs::directory_iterator{};
       entries.increment(code))
    if (!entries->is_symlink(code) && is_run(entries->path()))
      found.emplace_back(written_at(entries->path() / "run.json"), entries->path());
  if (code)
    return fail(errc::not_found, fmt::format("cannot list {}: {}; name the directory in which runs are (--storage of "
                                             "the programs)",
                                             storage.string(), code.message()));
  std::ranges::sort(found, std::greater{});
  std::vector<fs::path> result;
  for (auto& [when, path] : found)
    result.push_back(std::move(path));
  return result;
}

absent_driver explain_absence(const fs::path& run, const std::string& refusal) {
  const auto holder = actors::read_lock_holder(run);
  auto code = std::error_code{};
  if (!holder && fs::exists(run / "result.json", code)) {
    const auto result = object_in(run / "result.json");
    return {absence::ended,
            fmt::format("the run has ended: {} after step {}", value_of(result, "status", std::string{"unknown"}),
                        value_of(result, "steps", std::uint64_t{0}))};
  }
  if (!holder)
    return {absence::not_begun, "the run has not begun: its driver may still wait for its nodes, or it was refused"};
  switch (actors::life_of(*holder, run)) {
  case actors::holder_life::unknown:
    return {absence::elsewhere,
            fmt::format("the run's driver is on {} (process {}): ask there", holder->host, holder->pid)};
  case actors::holder_life::is_gone:
    return {absence::lost, fmt::format("the run's driver (process {}) has ended without a result: start the same "
                                       "command again, and the run goes on",
                                       holder->pid)};
  case actors::holder_life::lives:
    break;
  }
  return {absence::deaf, fmt::format("the run's driver (process {}) does not answer: {} (kill -INT {} stops the run)",
                                     holder->pid, refusal, holder->pid)};
}

ordered stored_status(const fs::path& run, absence why) {
  const auto described = object_in(run / "run.json");
  // An older result is of no interest in the others.
  const auto ended = why == absence::ended ? object_in(run / "result.json") : nlohmann::json::object();
  auto code = std::error_code{};
  auto storage = std::string{};
  const auto path = fs::weakly_canonical(run, code);
  const auto since =
      std::max({written_at(run / "result.json"), written_at(run / "metrics.jsonl"), written_at(run / "events.jsonl")});
  ordered result{{"name", value_of(described, "name", path.filename().string())},
                 {"run", value_of(described, "run", std::string{})},
                 {"path", path.string()},
                 {"state", word_for(why, ended, storage)}};
  if (since != std::chrono::system_clock::time_point{}) {
    result["since"] = actors::utc_text(since);
    result["seconds_in_state"] =
        std::max(0.0, std::chrono::duration<double>(std::chrono::system_clock::now() - since).count());
  }
  if (const auto holder = actors::read_lock_holder(run))
    result["driver"] = {{"host", holder->host}, {"pid", holder->pid}};
  add_metrics(result, run);
  const auto replay = described.find("replay");
  if (replay != described.end() && replay->is_object())
    result["steps"] = value_of(*replay, "steps", std::uint64_t{0});
  add_events(result, run);
  if (!ended.empty()) {
    const auto reason = value_of(ended, "error", nlohmann::json::object());
    result["step"] = value_of(ended, "steps", std::uint64_t{0});
    result["failures"] = value_of(ended, "failures", nlohmann::json::array()).size();
    result["latest_checkpoint"] = value_of(ended, "latest_checkpoint", std::string{});
    if (!reason.empty())
      result.update(
          {{"code", value_of(reason, "code", std::string{})}, {"cause", value_of(reason, "message", std::string{})}});
    const auto is_failed = result["state"] == "failed";
    const auto is_out_of_time = result["state"] == "stopped" && result.value("code", std::string{}) == "timed_out";
    result["exit_code"] = is_failed ? 1 : is_out_of_time ? exit_out_of_time : 0;
  }
  return result;
}

std::vector<nlohmann::json> last_rows(const fs::path& path, std::size_t bytes) {
  std::vector<nlohmann::json> result;
  auto in = std::ifstream{path, std::ios::binary | std::ios::ate};
  if (!in)
    return result;
  const auto size = static_cast<std::size_t>(in.tellg());
  const auto from = size > bytes ? size - bytes : 0;
  in.seekg(static_cast<std::streamoff>(from));
  auto line = std::string{};
  if (from > 0)
    std::getline(in, line);
  while (std::getline(in, line))
    if (auto row = nlohmann::json::parse(line, nullptr, false); row.is_object())
      result.push_back(std::move(row));
  return result;
}

} // namespace troupe::runtime

#include "run/status_text.hpp"

#include <processes.hpp>
#include <scratch_directory.hpp>

#include <troupe/actors/run_lock.hpp>
#include <troupe/result.hpp>
#include <troupe/runtime/found_run.hpp>
#include <troupe/runtime/worker_log.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <unistd.h>
#include <vector>

using namespace troupe;
using namespace troupe::runtime;
using namespace troupe::tool;
using troupe::testing::scratch_directory;
using troupe::testing::write_file;
using json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

json running() {
  return {{"name", "digits"},
          {"state", "running"},
          {"seconds_in_state", 75.0},
          {"step", 30},
          {"steps", 120},
          {"samples_per_second", 640.0},
          {"batch_samples", 64},
          {"seconds_left", 9.0},
          {"metrics", {{"accuracy", 0.5}, {"loss", 1.25}}},
          {"workers_wanted", {{"min", 1}, {"max", 4}}},
          {"workers", {{{"host", "a"}}, {{"host", "b"}}, {{"host", "a"}}}},
          {"path", "/runs/digits"}};
}

std::string text_of(const std::vector<std::string>& lines) {
  std::string result;
  for (const auto& each : lines)
    result += each + '\n';
  return result;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void append(const fs::path& path, const std::string& text) {
  std::ofstream{path, std::ios::binary | std::ios::app} << text;
}

std::vector<std::string> read(worker_log& log) {
  std::vector<std::string> result;
  log.read([&](const std::string& line) { result.push_back(line); });
  return result;
}

using lines = std::vector<std::string>;

} // namespace

TEST_CASE("durations have two units at most") {
  CHECK(duration_text(0) == "0.0 s");
  CHECK(duration_text(3.24) == "3.2 s");
  CHECK(duration_text(9.97) == "10 s");
  CHECK(duration_text(59.6) == "1 min 00 s");
  CHECK(duration_text(7380) == "2 h 03 min");
  CHECK(duration_text(90000) == "1 d 01 h");
  CHECK(duration_text(-1) == "0.0 s");
  CHECK(duration_text(std::numeric_limits<double>::infinity()) == "?");
}

TEST_CASE("a bar is as full as the run, and never longer") {
  CHECK(progress_bar(0, 4) == "[----]");
  CHECK(progress_bar(0.5, 4) == "[##--]");
  CHECK(progress_bar(0.99, 4) == "[###-]");
  CHECK(progress_bar(7, 4) == "[####]");
}

TEST_CASE("a status shows progress, the loss first, workers by host and who is late") {
  const auto text = text_of(describe_status(running(), {{{1, 3.0}, {2, 1.0}}, "rank 1 computes longer"}, 200));
  CHECK(text.starts_with("digits: running for 1 min 15 s\n"));
  CHECK(contains(text, "step 30 of 120 (25 %), 9.0 s left, 640 samples/s (10 steps/s)"));
  CHECK(contains(text, "loss 1.25  █▁"));
  CHECK(contains(text, "accuracy 0.5\n"));
  CHECK(contains(text, "3 of 4: a 2, b 1"));
  CHECK(contains(text, "rank 1 computes longer"));
  CHECK(status_line(running()) ==
        "running, step 30 of 120 (25 %), loss 1.25, 640 samples/s (10 steps/s), 9.0 s left, 3 workers");
}

TEST_CASE("lines are cut to the terminal, by characters, and control characters never reach it") {
  auto status = running();
  status["name"] = "evil\x1b[2J";
  status["metrics"] = {{"l\x07ss", 1.0}, {"gone", nullptr}};
  for (const auto& line : describe_status(status, {{}, "\x1b]0;title"}, 40)) {
    CHECK(line.find('\x1b') == std::string::npos);
    CHECK(line.find('\x07') == std::string::npos);
    CHECK(line.size() <= 40);
  }
  CHECK(contains(text_of(describe_status(status, {}, 100)), "gone not finite"));
  CHECK(event_line({{"event", "notice"}, {"text", "a\x1b[31mb\nsecond line"}}).find('\x1b') == std::string::npos);
}

TEST_CASE("a status of another version with other types is shown without them") {
  for (const auto& status : {json::object(), json{{"name", 7},
                                                  {"step", "x"},
                                                  {"workers", 3},
                                                  {"metrics", json::array()},
                                                  {"driver", nullptr},
                                                  {"checkpoint", 1}}}) {
    CHECK_FALSE(describe_status(status, {}, 80).empty());
    CHECK_FALSE(status_line(status).empty());
    CHECK_FALSE(end_text(status).empty());
  }
}

TEST_CASE("events that people see are a line, the others none") {
  CHECK(event_line({{"time", "2026-11-24T10:37:12.250Z"}, {"event", "warning"}, {"text", "slow"}}) ==
        "10:37:12  warning: slow");
  CHECK(contains(event_line({{"event", "failure"}, {"rank", 2}, {"step", 7}, {"cause", "killed"}}),
                 "failure of rank 2 in step 7: killed"));
  CHECK(event_line({{"event", "failure"}, {"consequence", true}, {"cause", "killed"}}).empty());
  CHECK(event_line({{"event", "pause"}, {"rank", 0}}).empty());
  CHECK(event_line(json::object()).empty());
}

TEST_CASE("a run is found by its directory or by its name") {
  scratch_directory scratch;
  const auto storage = scratch.path() / "runs";
  for (const auto* name : {"one", "two"}) {
    fs::create_directories(storage / name);
    write_file(storage / name / "run.json", "{}");
  }
  fs::create_directories(storage / "reserved");
  fs::create_directories(storage / "other" / "content");
  fs::create_directory_symlink("two", storage / "latest");
  CHECK(find_run((storage / "one").string(), "/nowhere") == storage / "one");
  CHECK(find_run("two", storage) == storage / "two");
  CHECK(find_run("latest", storage) == storage / "latest");
  CHECK(find_run("reserved", storage) == storage / "reserved");
  for (const auto* name : {"other", "missing"}) {
    const auto missing = find_run(name, storage);
    REQUIRE_FALSE(missing);
    CHECK(missing.error().code == errc::not_found);
    CHECK(contains(missing.error().message, name));
  }
  auto listed = list_runs(storage);
  REQUIRE(listed);
  std::ranges::sort(*listed);
  CHECK(*listed == std::vector<fs::path>{storage / "one", storage / "two"});
  CHECK(list_runs(storage / "one") == std::vector<fs::path>{storage / "one"});
  CHECK_FALSE(list_runs(scratch.path() / "missing"));
}

TEST_CASE("a run without an answer is told apart: not begun, ended, lost, elsewhere, deaf") {
  scratch_directory scratch;
  const auto& run = scratch.path();
  CHECK(explain_absence(run, "").why == absence::not_begun);
  write_file(run / ".lock", "");
  CHECK(explain_absence(run, "").why == absence::not_begun);
  write_file(run / "result.json", R"({"status":"completed","steps":12})");
  CHECK(explain_absence(run, "").why == absence::ended);
  CHECK(contains(explain_absence(run, "").text, "completed after step 12"));
  // It goes on after an earlier end, and its driver is killed.
  write_file(run / ".lock", std::to_string((1u << 22) + 1) + " " + actors::lock_host() + "\n");
  CHECK(explain_absence(run, "").why == absence::lost);
  write_file(run / ".lock", "4711 a-host-far-away\n");
  CHECK(explain_absence(run, "").why == absence::elsewhere);
  CHECK(contains(explain_absence(run, "").text, "a-host-far-away"));
  write_file(run / ".lock", actors::lock_content());
  const auto open = std::ifstream{run / ".lock"};
  CHECK(explain_absence(run, "refused").why == absence::deaf);
}

TEST_CASE("the status of a run without a driver is what its files tell") {
  scratch_directory scratch;
  const auto& run = scratch.path();
  write_file(run / "run.json", R"({"name":"digits","run":"abc","replay":{"steps":100}})");
  write_file(run / "metrics.jsonl", R"({"step":6,"rank":0,"seconds":1,"time":"t","loss":0.75}
{"step":7,"rank":1,"loss":9}
{"step":8,"ra)");
  write_file(run / "events.jsonl", R"({"time":"t","event":"checkpoint","step":5,"path":"/c/5"}
{"time":"t","event":"failure","cause":"killed","consequence":false}
)");
  const auto lost = stored_status(run, absence::lost);
  CHECK(lost["state"] == "driver lost");
  CHECK(lost["name"] == "digits");
  CHECK(lost["step"] == 7);
  CHECK(lost["steps"] == 100);
  CHECK(lost["metrics"] == json{{"loss", 0.75}});
  CHECK(lost["checkpoint"]["path"] == "/c/5");
  CHECK(lost["last_failure"] == "killed");
  CHECK_FALSE(lost.contains("exit_code"));
  write_file(run / "result.json", R"({"status":"stopped","steps":9,"latest_checkpoint":"/c/9","failures":[{}],
    "error":{"code":"timed_out","message":"its time was over"}})");
  const auto ended = stored_status(run, absence::ended);
  CHECK(ended["state"] == "stopped");
  CHECK(ended["step"] == 9);
  CHECK(ended["failures"] == 1);
  CHECK(ended["cause"] == "its time was over");
  CHECK(ended["exit_code"] == exit_out_of_time);
  CHECK(contains(end_text(ended), "stopped after step 9: its time was over"));
  // Files that are damaged.
  write_file(run / "result.json", R"({"status":7,"failures":"x"})");
  write_file(run / "run.json", "[]");
  write_file(run / "metrics.jsonl", "\xff\n[]\n{\"step\":\"x\"}\n");
  CHECK(stored_status(run, absence::ended)["state"] == "ended");
}

TEST_CASE("a log is read as it grows, with a line only when it is whole") {
  scratch_directory scratch;
  const auto path = scratch.path() / "worker-0.log";
  worker_log log{path};
  CHECK(read(log).empty());
  append(path, "one\ntw");
  CHECK(read(log) == lines{"one"});
  append(path, "o\n\n");
  CHECK(read(log) == lines{"two", ""});
  append(path, "rest");
  CHECK(read(log).empty());
  lines rest;
  log.flush([&](const std::string& line) { rest.push_back(line); });
  CHECK(rest == lines{"rest"});
}

TEST_CASE("a log is followed through its rotations") {
  scratch_directory scratch;
  const auto path = scratch.path() / "worker-0.log";
  const auto older = fs::path{path.string() + ".1"};
  write_file(older, "0\n");
  write_file(path, "1\n");
  worker_log log{path};
  CHECK(read(log) == lines{"0", "1"});
  append(path, "2\n");
  fs::rename(path, older);
  CHECK(read(log) == lines{"2"});
  write_file(path, "3\n");
  CHECK(read(log) == lines{"3"});
  // Twice between two looks.
  append(path, "4\n");
  fs::rename(path, older);
  write_file(path, "5\n");
  fs::rename(path, older);
  write_file(path, "6\n");
  CHECK(read(log) == lines{"4", "5", "6"});
  CHECK(read(log).empty());
}

TEST_CASE("the last lines are found in both files of a log") {
  scratch_directory scratch;
  const auto path = scratch.path() / "worker-0.log";
  write_file(path.string() + ".1", "1\n2\n3\n");
  write_file(path, "4\n5\n");
  const auto last = [&](std::uint64_t count) {
    worker_log log{path};
    log.skip_to_last(count);
    auto result = read(log);
    append(path, "more\n");
    CHECK(read(log) == lines{"more"});
    write_file(path, "4\n5\n");
    return result;
  };
  CHECK(last(0).empty());
  CHECK(last(1) == lines{"5"});
  CHECK(last(2) == lines{"4", "5"});
  CHECK(last(3) == lines{"3", "4", "5"});
  CHECK(last(99) == lines{"1", "2", "3", "4", "5"});
}

TEST_CASE("logs have the rank that their worker had last") {
  scratch_directory scratch;
  const auto logs = scratch.path() / "logs";
  fs::create_directories(logs);
  write_file(logs / "ranks.jsonl", R"({"worker":1,"rank":1}
{"worker":1,"rank":0}
)");
  for (const auto* name : {"worker-1.log", "worker-1.log.1", "worker-12.log", "worker-x.log", "worker-.log", "other"})
    write_file(logs / name, "x\n");
  CHECK(list_logs(scratch.path()) == std::vector<known_log>{{1, 0}, {12, std::nullopt}});
  CHECK(list_logs(scratch.path() / "missing").empty());
}

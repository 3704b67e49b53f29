#include "driver/job_variable.hpp"
#include "jobs/driver_restarts.hpp"
#include "jobs/job_directory.hpp"
#include "jobs/job_files.hpp"
#include "jobs/job_messages.hpp"
#include "jobs/job_news.hpp"
#include "jobs/job_watch.hpp"

#include <scratch_directory.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

// A node's jobs: what is said and kept about them, and when their drivers are started again.

using namespace troupe;
using namespace troupe::runtime;
using namespace std::chrono_literals;

namespace {

job_record sample() {
  return {.name = "night",
          .arguments = {"charlm", "--steps", "10"},
          .environment = {{"A", "1"}},
          .directory = "/data",
          .mirror = "rclone:s3:runs",
          .is_shared = true,
          .time_limit = 90s,
          .wait_for_resources = 5s,
          .keepers = {"10.0.0.1:4000", "10.0.0.2:4000"},
          .submitter = "ada@desk",
          .submitted = 1'700'000'000'000};
}

exit_report exited(int code) {
  exit_report result;
  result.exit_code = code;
  return result;
}

exit_report killed(int signal) {
  exit_report result;
  result.signal = signal;
  return result;
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream{path} << text;
}

const job_end* end_in(const std::variant<job_end, driver_restarts::start_again>& x) {
  return std::get_if<job_end>(&x);
}

} // namespace

TEST_CASE("a job survives its description") {
  known_job job{sample(), 3, "10.0.0.2:4000", {}};
  CHECK(parse_job(describe(job)).value() == job);
  job.is_removed = true;
  CHECK_FALSE(parse_job(describe(job)).value().is_removed);
  job.end = job_end{job_outcome::failed, 137, "its driver died", 1'700'000'001'000};
  CHECK(parse_job(describe(job)).value() == job);
}

TEST_CASE("what is no job is refused") {
  const auto refusal = [](auto change) {
    auto job = known_job{sample(), 1, "h:1", {}};
    change(job.what);
    const auto parsed = parse_job(describe(job));
    return parsed ? std::string{} : parsed.error().message;
  };
  CHECK(refusal([](job_record&) {}).empty());
  CHECK(refusal([](job_record& x) { x.name = "../up"; }).find("cannot name a job") != std::string::npos);
  CHECK(refusal([](job_record& x) { x.files = {{"a/b", "1"}}; }).find("cannot name a file") != std::string::npos);
  CHECK(refusal([](job_record& x) {
          x.files = {{"a", "1"}, {"a", "2"}};
        }).find("two files with the name a") != std::string::npos);
  CHECK(refusal([](job_record& x) { x.name = "latest"; }).find("cannot name a job") != std::string::npos);
  CHECK_FALSE(refusal([](job_record& x) { x.name.clear(); }).empty());
  CHECK_FALSE(refusal([](job_record& x) { x.arguments.clear(); }).empty());
  CHECK_FALSE(refusal([](job_record& x) { x.arguments.push_back(std::string("a\0b", 3)); }).empty());
  CHECK_FALSE(refusal([](job_record& x) { x.environment["B=C"] = "1"; }).empty());
  CHECK_FALSE(refusal([](job_record& x) { x.arguments.emplace_back(std::size_t{1} << 20, 'x'); }).empty());
  CHECK_FALSE(refusal([](job_record& x) { x.keepers.resize(4, "h:1"); }).empty());
  CHECK_FALSE(parse_job(nlohmann::json::array()));
  CHECK_FALSE(parse_job({{"name", "x"}, {"arguments", "x"}}));
}

TEST_CASE("a driver that exits has ended its job, and one that a signal ends is started again") {
  const auto now = driver_restarts::time_point{} + 1h;
  driver_restarts x;
  x.on_start(now);
  CHECK(end_in(x.on_exit(exited(0), false, now))->outcome == job_outcome::completed);
  CHECK(end_in(x.on_exit(exited(75), false, now))->outcome == job_outcome::stopped);
  CHECK(end_in(x.on_exit(exited(143), false, now))->outcome == job_outcome::stopped);
  CHECK(end_in(x.on_exit(exited(1), false, now))->outcome == job_outcome::failed);
  auto with_words = exited(2);
  with_words.last_lines = {"cannot open data.txt", ""};
  CHECK(end_in(x.on_exit(with_words, false, now))->reason == "its driver ended with exit code 2: cannot open data.txt");
  CHECK(end_in(x.on_exit(killed(9), true, now))->outcome == job_outcome::stopped);
  CHECK(end_in(x.on_exit(killed(15), true, now))->reason.starts_with("it was told to end, and its driver was killed"));
  CHECK(end_in(x.on_exit(killed(9), false, now)) == nullptr);
}

TEST_CASE("a driver that dies again and again is started after longer and longer pauses, and at last not any more") {
  auto now = driver_restarts::time_point{} + 1h;
  driver_restarts x{{.first_pause = 100ms, .longest_pause = 1s, .healthy_after = 1min, .most_in_row = 6}};
  std::vector<std::chrono::milliseconds> pauses;
  for (;;) {
    x.on_start(now);
    now += 1s;
    const auto next = x.on_exit(killed(11), false, now);
    if (const auto* end = end_in(next)) {
      CHECK(end->outcome == job_outcome::failed);
      CHECK(end->exit_code == 139);
      CHECK(end->reason.find("7 times in a row") != std::string::npos);
      break;
    }
    const auto at = std::get<driver_restarts::start_again>(next).at;
    pauses.push_back(std::chrono::duration_cast<std::chrono::milliseconds>(at - now));
    now = at;
  }
  CHECK(pauses == std::vector<std::chrono::milliseconds>{100ms, 200ms, 400ms, 800ms, 1s, 1s});
  // One that lived long begins a new row.
  x.on_start(now);
  now += 2min;
  CHECK(std::get<driver_restarts::start_again>(x.on_exit(killed(9), false, now)).at - now == 100ms);
}

TEST_CASE("a directory of jobs keeps them, belongs to one node, and leaves what is damaged alone") {
  const testing::scratch_directory scratch;
  const auto path = scratch.path() / "state";
  {
    const auto jobs = job_directory::open(path);
    REQUIRE(jobs);
    CHECK(job_directory::open(path).error().code == errc::busy);
    REQUIRE(jobs->save({sample(), 1, "h:1", {}}));
    REQUIRE(jobs->save({sample(), 2, "h:2", {}}));
    write(path / "torn" / "job.json", R"({"name": "to)");
    write(path / "other" / "job.json", describe({sample(), 1, "h:1", {}}).dump());
  }
  const auto jobs = job_directory::open(std::filesystem::relative(path));
  REQUIRE(jobs);
  // Drivers with other working directories write there.
  CHECK(jobs->list_of_runs("night").is_absolute());
  std::vector<std::string> problems;
  CHECK(jobs->load(problems) == std::vector<known_job>{{sample(), 2, "h:2", {}}});
  CHECK(problems.size() == 2);
  const auto rights = std::filesystem::status(path).permissions();
  CHECK((rights & (std::filesystem::perms::group_all | std::filesystem::perms::others_all)) ==
        std::filesystem::perms::none);
  write(jobs->list_of_runs("night"), "{\"run\":\"/a\"}\n{\"run\":\"/b\"}\n{\"run\":\"/a\"}\n{\"run\":");
  CHECK(jobs->runs_of("night") == std::vector<std::filesystem::path>{"/b", "/a"});
  CHECK(jobs->runs_of("nobody").empty());
}

TEST_CASE("a job's files are set aside at once and removed later, but for what is known of it") {
  const testing::scratch_directory scratch;
  const auto jobs = job_directory::open(scratch.path());
  REQUIRE(jobs);
  REQUIRE(jobs->save({sample(), 1, "h:1", {}}));
  const auto night = scratch.path() / "night";
  for (auto round = 0; round < 2; ++round) {
    write(night / "runs" / "night" / "result.json", "{}");
    write(night / "driver.log", "words");
    REQUIRE(jobs->set_aside("night"));
    CHECK(std::filesystem::exists(night / "job.json"));
    CHECK_FALSE(std::filesystem::exists(night / "runs"));
    CHECK_FALSE(std::filesystem::exists(night / "driver.log"));
    CHECK(std::filesystem::exists(scratch.path() / ("night~" + std::to_string(round)) / "driver.log"));
  }
  // With nothing there.
  REQUIRE(jobs->set_aside("night"));
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "night~2"));
  CHECK(jobs->sweep().empty());
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "night~0"));
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "night~1"));
  std::vector<std::string> problems;
  CHECK(jobs->load(problems).size() == 1);
  CHECK(problems.empty());
  jobs->forget("night");
  CHECK_FALSE(std::filesystem::exists(night));
}

TEST_CASE("a driver's log is begun anew at its size, and keeps the one before") {
  const testing::scratch_directory scratch;
  line_log log{scratch.path() / "driver.log"};
  const auto line = std::string(std::size_t{1} << 20, 'x');
  for (auto i = 0; i < 20; ++i)
    log.add(line);
  CHECK(std::filesystem::file_size(scratch.path() / "driver.log") <= line_log::most_bytes);
  CHECK(std::filesystem::file_size(scratch.path() / "driver.log.1") <= line_log::most_bytes);
  CHECK(std::filesystem::file_size(scratch.path() / "driver.log") +
            std::filesystem::file_size(scratch.path() / "driver.log.1") ==
        20 * (line.size() + 1));
}

TEST_CASE("of a run's files only its texts can be read, in pieces") {
  const testing::scratch_directory scratch;
  const auto job = scratch.path() / "job";
  const auto run = job / "runs" / "night";
  write(job / "driver.log", "driver");
  write(job / "job.json", "secret");
  write(run / "metrics.jsonl", "0123456789");
  write(run / ".journal-0", "secret");
  write(run / "checkpoints" / "step-00000001" / "part", "weights");
  write(run / "logs" / "worker-0.log", "words");
  write(run / "logs" / "other", "words");
  std::vector<std::string> names;
  for (const auto& each : list_job_files(job, run))
    names.push_back(each.path);
  CHECK(names == std::vector<std::string>{"driver.log", "logs/worker-0.log", "metrics.jsonl"});
  CHECK(list_job_files(job, {}).size() == 1);
  CHECK(read_job_file(job, run, "metrics.jsonl", 2, 3).value() == "234");
  CHECK(read_job_file(job, run, "metrics.jsonl", 10, 3).value().empty());
  CHECK(read_job_file(job, run, "driver.log", 0, 100).value() == "driver");
  for (const auto* name : {"job.json", ".journal-0", "logs/other", "logs/../.journal-0", "/etc/passwd", ""})
    CHECK(read_job_file(job, run, name, 0, 100).error().code == errc::not_found);
}

TEST_CASE("a hosted driver's configuration gets what the program left open") {
  const job_context job{"night", {"10.0.0.1:4000"}, false, "/keys", "/mirror", 90s, 5s, "/jobs/night/runs.jsonl"};
  CHECK(parse_job_context(to_text(job)).value() == job);
  CHECK_FALSE(parse_job_context("{}"));
  CHECK_FALSE(parse_job_context("?"));
  trainer_config open;
  complete(open, job);
  CHECK(open.run.name == "night");
  CHECK(open.cluster.entry == job.cluster);
  CHECK(open.cluster.keys == job.keys);
  CHECK(open.checkpoint.mirror.to == "/mirror");
  CHECK(open.run.time_limit == 90s);
  CHECK(open.scaling.wait_for_resources == 5s);
  trainer_config said;
  said.run.name = "own";
  said.cluster.nodes = {"10.0.0.9:4000"};
  said.checkpoint.mirror.to = "/other";
  said.run.time_limit = 5s;
  const auto before = said;
  complete(said, job);
  CHECK(said.run.name == before.run.name);
  CHECK(said.cluster.nodes == before.cluster.nodes);
  CHECK(said.cluster.entry.empty());
  CHECK(said.checkpoint.mirror.to == "/other");
  CHECK(said.run.time_limit == 5s);
}

namespace {

/// A keeper of a job with three, on the node at address B; its host is A.
struct watching_keeper {
  driver_restarts::time_point now = driver_restarts::time_point{} + 1h;
  known_job job{sample(), 1, "A", {}};
  job_watch watch{"B", {.lost_after = 10s, .lost_alone = 60s, .there_within = 3s}, now};

  watching_keeper() { job.what.keepers = {"A", "B", "C"}; }

  /// Passes a second at a time, in which these speak. Returns after how many this node takes the job over.
  int seconds_to_takeover(bool host_speaks, bool other_speaks, int limit = 100) {
    for (auto second = 1; second <= limit; ++second) {
      now += 1s;
      if (host_speaks)
        watch.hear("A", 0s, now);
      if (other_speaks)
        watch.hear("C", watch.host_silent_for(now), now);
      if (watch.takes_over(job, now))
        return second;
    }
    return 0;
  }
};

} // namespace

TEST_CASE("a keeper takes a job over whose host is silent: soon if another agrees, later if it is alone") {
  CHECK(watching_keeper{}.seconds_to_takeover(true, true) == 0);
  CHECK(watching_keeper{}.seconds_to_takeover(true, false) == 0);
  CHECK(watching_keeper{}.seconds_to_takeover(false, true) == 10);
  CHECK(watching_keeper{}.seconds_to_takeover(false, false) == 60);
}

TEST_CASE("a host that another keeper hears is not lost") {
  watching_keeper x;
  for (auto second = 0; second < 100; ++second) {
    x.now += 1s;
    x.watch.hear("C", 1s, x.now);
    CHECK_FALSE(x.watch.takes_over(x.job, x.now));
  }
  CHECK(x.watch.host_silent_for(x.now) == 1s);
}

TEST_CASE("the first keeper that is there takes a job over, and nobody one that has ended or that it has") {
  watching_keeper x;
  x.job.what.keepers = {"A", "C", "B"};
  CHECK(x.seconds_to_takeover(false, true) == 0);
  // C is gone, too.
  CHECK(x.seconds_to_takeover(false, false) > 0);
  watching_keeper ended;
  ended.job.end = job_end{};
  CHECK(ended.seconds_to_takeover(false, true) == 0);
  watching_keeper own;
  own.job.host = "B";
  CHECK(own.seconds_to_takeover(false, true) == 0);
  CHECK(own.watch.successor(own.job, own.now) == "C");
  CHECK(watching_keeper{}.watch.successor(own.job, own.now).empty());
}

TEST_CASE("of two that say different things about a job one is right, whoever is asked") {
  auto job = known_job{sample(), 1, "A", {}};
  job.what.keepers = {"A", "B", "C"};
  auto moved = job;
  moved.term = 2;
  moved.host = "C";
  auto ended = job;
  ended.end = job_end{};
  auto elsewhere = job;
  elsewhere.host = "B";
  auto removed = ended;
  removed.is_removed = true;
  CHECK(supersedes(removed, ended));
  CHECK_FALSE(supersedes(ended, removed));
  CHECK(supersedes(removed, job));
  CHECK(supersedes(moved, removed));
  CHECK(supersedes(moved, job));
  CHECK_FALSE(supersedes(job, moved));
  CHECK(supersedes(moved, ended));
  CHECK(supersedes(ended, job));
  CHECK_FALSE(supersedes(job, ended));
  CHECK(supersedes(job, elsewhere));
  CHECK_FALSE(supersedes(elsewhere, job));
  CHECK_FALSE(supersedes(job, job));
}

TEST_CASE("keepers hear of a job's end until they know, for a day, and later if they say something else") {
  const auto ended_at = std::chrono::system_clock::time_point{} + 1000h;
  const auto soon = ended_at + 1h;
  const auto late = ended_at + 25h;
  const auto runs = known_job{sample(), 1, "A", {}};
  auto ended = runs;
  ended.end = job_end{.at = static_cast<std::uint64_t>(
                          std::chrono::duration_cast<std::chrono::milliseconds>(ended_at.time_since_epoch()).count())};
  auto removed = ended;
  removed.is_removed = true;
  job_news x;
  CHECK(x.is_for("B", runs, late));
  x.on_told("B");
  CHECK(x.is_for("B", runs, late));
  x.begin();
  CHECK(x.is_for("B", ended, soon));
  CHECK_FALSE(x.is_for("B", ended, late));
  x.on_told("B");
  CHECK_FALSE(x.is_for("B", ended, soon));
  CHECK(x.is_for("C", ended, soon));
  x.on_word("C", ended, ended);
  CHECK_FALSE(x.is_for("C", ended, soon));
  // It has lost what it knew, or has been away since.
  x.on_word("C", runs, ended);
  CHECK(x.is_for("C", ended, late));
  x.on_told("C");
  CHECK_FALSE(x.is_for("C", ended, soon));
  x.begin();
  x.on_word("B", ended, removed);
  CHECK(x.is_for("B", removed, late));
  x.on_word("B", removed, removed);
  CHECK_FALSE(x.is_for("B", removed, soon));
}

#include "scratch_runs.hpp"

#include <memory_file_system.hpp>
#include <s3_server.hpp>

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace troupe::testing;
namespace fs = std::filesystem;

namespace {

using variables = std::map<std::string, std::string>;

/// A mirror has the lowest priority: on a busy machine, the end of a run waits for it.
constexpr auto mirror_limit = 5 * hang_limit;

outcome run_to_end(scratch_runs& here, const std::vector<std::string>& argv, const variables& environment) {
  auto process = here.start(argv, environment);
  auto status = process.wait(mirror_limit);
  return {status, process.out(), process.err()};
}

outcome succeed(scratch_runs& here, const std::vector<std::string>& argv, const variables& environment = {}) {
  auto ran = run_to_end(here, argv, environment);
  INFO(ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  return ran;
}

/// Runs a command that must fail with all of `parts` in its message.
void refused(scratch_runs& here, const std::vector<std::string>& argv, const std::vector<std::string>& parts,
             const variables& environment = {}) {
  auto ran = run_to_end(here, argv, environment);
  INFO(ran.err);
  CHECK(ran.status == exit_status{1, {}});
  for (const auto& part : parts)
    CHECK_MESSAGE(contains(ran.err, part), "the message lacks: " << part);
}

std::string state(const scratch_runs& here, const std::string& name) {
  return here.result(name)["state_sha256"];
}

/// The state of a run of twelve steps that nothing disturbs.
std::string undisturbed(scratch_runs& here) {
  succeed(here, here.charlm("undisturbed"));
  return state(here, "undisturbed");
}

/// The checkpoints in a mirror's directory, which must all be good.
std::vector<std::uint64_t> good_steps(const fs::path& place) {
  std::vector<std::uint64_t> result;
  const auto found = troupe::serialization::list_checkpoints(place / "checkpoints");
  REQUIRE(found);
  for (const auto& each : *found) {
    const auto opened = troupe::serialization::checkpoint::open(each.path);
    REQUIRE_MESSAGE(opened, opened.error().message);
    CHECK(opened->verify());
    result.push_back(each.step.value);
  }
  return result;
}

bool is_copying(const fs::path& place) {
  auto code = std::error_code{};
  for (auto each = fs::directory_iterator{place / "checkpoints", code}; !code && each != fs::directory_iterator{};
       each.increment(code))
    if (each->path().filename().string().ends_with(".copy.tmp"))
      return true;
  return false;
}

/// Null, and says so, if there can be none.
std::unique_ptr<s3_server> start_s3(const fs::path& scratch) {
  std::string why;
  auto result = s3_server::start(scratch, why);
  if (!result) {
    std::printf("SKIP: %s\n", why.c_str());
    CHECK_FALSE(why.empty());
  }
  return result;
}

/// The arguments of the run on a host with a directory of its own.
std::vector<std::string> on_host(const scratch_runs& here, const std::string& host, std::vector<std::string> more) {
  more.insert(more.end(), {"--storage", here.path(host).string()});
  return here.charlm("run", std::move(more));
}

using steps = std::vector<std::uint64_t>;

} // namespace

TEST_CASE("a run whose directory is lost resumes from its mirror, and ends with the bits of an undisturbed one") {
  scratch_runs here;
  const auto expected = undisturbed(here);
  const auto mirror = here.path("mirror");
  succeed(here, here.charlm("run", {"--mirror", mirror.string(), "--steps", "6", "--checkpoint-every", "2"}));
  const auto first = here.result("run");
  CHECK(first["mirror"]["place"] == (mirror / "run").string());
  CHECK(first["mirror"]["lacks"].is_null());
  CHECK(first["mirror"]["checkpoints"].back() == 6);
  CHECK(good_steps(mirror / "run") == first["mirror"]["checkpoints"].get<steps>());
  CHECK(good_steps(mirror / "run").size() <= 2);
  // The mirror has the final result as well.
  CHECK(read_file(mirror / "run" / "result.json") == read_file(here.run_directory("run") / "result.json"));
  fs::remove_all(here.run_directory("run"));
  succeed(here, here.charlm("run", {"--mirror", mirror.string(), "--resume", "required", "--workers", "3"}));
  CHECK(here.result("run")["resumed_from_step"] == 6);
  CHECK(state(here, "run") == expected);
  // The history came with it: one line for each step and rank.
  const auto lines = read_lines(here.run_directory("run") / "metrics.jsonl");
  CHECK(std::ranges::count_if(lines, [](const auto& line) { return line["step"] == 1; }) == 2);
  CHECK(std::ranges::count_if(lines, [](const auto& line) { return line["step"] == 12; }) == 3);
  CHECK(good_steps(mirror / "run").back() == 12);
  const auto events = read_lines(here.run_directory("run") / "events.jsonl");
  CHECK(std::ranges::count_if(events, [](const auto& line) { return line["event"] == "mirrored"; }) > 0);
  // A copy of the mirror's is a run's directory like any other.
  succeed(here, here.charlm("pupil", {"--from", (mirror / "run").string(), "--steps", "2"}));
}

TEST_CASE("a mirror that is newer than the directory is resumed from, an older one is not") {
  scratch_runs here;
  const auto expected = undisturbed(here);
  const auto mirror = here.path("mirror").string();
  succeed(here, here.charlm("run", {"--mirror", mirror, "--steps", "4"}));
  fs::copy(here.run_directory("run"), here.path("old"), fs::copy_options::recursive);
  succeed(here, here.charlm("run", {"--mirror", mirror, "--steps", "8"}));
  // The directory of another host, which has not taken part.
  fs::remove_all(here.run_directory("run"));
  fs::copy(here.path("old"), here.run_directory("run"), fs::copy_options::recursive);
  succeed(here, here.charlm("run", {"--mirror", mirror, "--steps", "10"}));
  CHECK(here.result("run")["resumed_from_step"] == 8);
  succeed(here, here.charlm("run", {"--steps", "11"}));
  succeed(here, here.charlm("run", {"--mirror", mirror}));
  CHECK(here.result("run")["resumed_from_step"] == 11);
  CHECK(state(here, "run") == expected);
  CHECK(good_steps(here.path("mirror") / "run").back() == 12);
}

TEST_CASE("a run that moves to another host and back keeps every line of its metrics, and has its bits") {
  scratch_runs here;
  const auto expected = undisturbed(here);
  std::string mirror;
  SUBCASE("over a directory") {
    mirror = here.path("mirror").string();
  }
  SUBCASE("over rclone") {
    if (!is_in_path("rclone")) {
      std::puts("SKIP: rclone is not installed");
      return;
    }
    mirror = "rclone::local:" + here.path("mirror").string();
  }
  const auto train = [&](const std::string& host, const std::string& steps) {
    succeed(here, on_host(here, host, {"--mirror", mirror, "--steps", steps, "--workers", "2"}));
  };
  train("host-a", "4");
  train("host-b", "8");
  train("host-a", "12");
  // Each has what the one before has written.
  for (const auto* log : {"metrics.jsonl.1", "events.jsonl.1"})
    CHECK_FALSE(fs::exists(here.path("mirror") / "run" / log));
  for (const auto& place : {here.path("host-a") / "run", here.path("mirror") / "run"}) {
    std::multiset<std::pair<std::uint64_t, std::uint64_t>> rows;
    for (const auto& row : read_lines(place / "metrics.jsonl"))
      rows.emplace(row["step"], row["rank"]);
    std::multiset<std::pair<std::uint64_t, std::uint64_t>> wanted;
    for (std::uint64_t step = 1; step <= 12; ++step)
      for (std::uint64_t rank = 0; rank < 2; ++rank)
        wanted.emplace(step, rank);
    CHECK(rows == wanted);
    // Three drivers have begun, and ended.
    std::multiset<std::string> kinds;
    for (const auto& event : read_lines(place / "events.jsonl"))
      kinds.insert(event["event"].get<std::string>());
    CHECK(kinds.count("started") == 3);
    CHECK(kinds.count("ended") == 3);
  }
  const auto result = nlohmann::json::parse(read_file(here.path("host-a") / "run" / "result.json"));
  CHECK(result["state_sha256"] == expected);
  CHECK(result["resumed_from_step"] == 8);
}

TEST_CASE("a history that is only at the mirror is kept there") {
  scratch_runs here;
  auto mirror = here.path("mirror").string();
  SUBCASE("a directory") {}
  SUBCASE("behind rclone") {
    if (!is_in_path("rclone")) {
      std::puts("SKIP: rclone is not installed");
      return;
    }
    mirror = "rclone::local:" + mirror;
  }
  const auto there = here.path("mirror") / "run";
  const auto train = [&](const std::string& steps) {
    return succeed(here, here.charlm("run", {"--mirror", mirror, "--steps", steps, "--workers", "1"})).err;
  };
  const auto steps_in = [&](const std::string& log) {
    steps result;
    for (const auto& row : read_lines(there / log))
      result.push_back(row["step"]);
    return result;
  };
  train("2");
  // The checkpoints stay: nothing is fetched.
  fs::remove(here.run_directory("run") / "metrics.jsonl");
  const auto said = train("4");
  CHECK(contains(said, "it is kept there as metrics.jsonl.1"));
  CHECK(said.find("kept there") == said.rfind("kept there"));
  fs::remove(here.run_directory("run") / "metrics.jsonl");
  CHECK(contains(train("6"), "it is kept there as metrics.jsonl.2"));
  CHECK_FALSE(contains(train("8"), "kept there"));
  CHECK(steps_in("metrics.jsonl.1") == steps{1, 2});
  CHECK(steps_in("metrics.jsonl.2") == steps{3, 4});
  CHECK(steps_in("metrics.jsonl") == steps{5, 6, 7, 8});
  CHECK_FALSE(fs::exists(there / "events.jsonl.1"));
}

TEST_CASE("of two drivers of one run that live at once the later one has the mirror, and the earlier one says so") {
  scratch_runs here;
  const auto place = here.path("mirror") / "run";
  auto mirror = here.path("mirror").string();
  SUBCASE("a directory") {}
  SUBCASE("behind rclone") {
    if (!is_in_path("rclone")) {
      std::puts("SKIP: rclone is not installed");
      return;
    }
    mirror = "rclone::local:" + mirror;
  }
  const auto start = [&](const std::string& host) {
    return here.start(on_host(
        here, host, {"--mirror", mirror, "--steps", "100000000", "--checkpoint-every", "100", "--workers", "1"}));
  };
  const auto owner = [&] { return nlohmann::json::parse(read_file(place / "owner.json"), nullptr, false); };
  auto first = start("host-a");
  here.await(first, [&] { return contains(read_file(here.path("host-a") / "run" / "events.jsonl"), "\"mirrored\""); });
  CHECK(owner()["claim"] == 1);
  CHECK(owner()["pid"] == first.pid());
  auto second = start("host-b");
  here.await(first, [&] { return contains(first.err(), "is now that of the driver"); });
  CHECK(owner()["claim"] == 2);
  CHECK(owner()["pid"] == second.pid());
  // It trains on, and neither writes there nor waits at its end.
  const auto result_of = [&](const std::string& host, child_process& driver) {
    driver.signal(SIGTERM);
    const auto status = driver.wait(mirror_limit);
    INFO(driver.err());
    CHECK(status == exit_status{128 + SIGTERM, {}});
    return nlohmann::json::parse(read_file(here.path(host) / "run" / "result.json"));
  };
  const auto lost = result_of("host-a", first);
  CHECK(lost["status"] == "stopped");
  CHECK(contains(lost["mirror"]["lacks"], "the driver with process id " + std::to_string(second.pid())));
  CHECK(first.err().find("is now that of") == first.err().rfind("is now that of"));
  const auto events = read_lines(here.path("host-a") / "run" / "events.jsonl");
  const auto event = std::ranges::find(events, "mirror_superseded", [](const auto& x) { return x["event"]; });
  REQUIRE(event != events.end());
  CHECK((*event)["by"]["pid"] == second.pid());
  const auto won = result_of("host-b", second);
  CHECK(won["mirror"]["lacks"].is_null());
  // The earlier one may have copied a later step before the other had begun.
  CHECK(std::ranges::count(good_steps(place), won["steps"].get<std::uint64_t>()) == 1);
  CHECK(read_file(place / "result.json") == read_file(here.path("host-b") / "run" / "result.json"));
  CHECK(owner()["claim"] == 2);
  CHECK(won["state_sha256"] == here.state_after(won["steps"]));
  CHECK(lost["state_sha256"] == here.state_after(lost["steps"]));
}

TEST_CASE("drivers that are killed while they copy leave good checkpoints at the mirror, and nothing runs on") {
  scratch_runs here;
  const auto expected = undisturbed(here);
  const auto place = here.path("mirror") / "run";
  const auto argv = here.charlm(
      "run", {"--mirror", here.path("mirror").string(), "--checkpoint-every", "1", "--checkpoints-in-flight", "0"});
  steps before;
  for (int i = 0; i < 4; ++i) {
    auto driver = here.start(argv);
    // It may also come to its end.
    becomes_true([&] { return is_copying(place) || !driver.running(); });
    driver.signal(SIGKILL);
    driver.wait();
    CHECK(becomes_true([&] { return here.processes().empty(); }));
    const auto now = fs::exists(place) ? good_steps(place) : steps{};
    // What was there is not lost before something newer is there.
    if (!before.empty()) {
      REQUIRE_FALSE(now.empty());
      CHECK(now.back() >= before.back());
    }
    before = now;
    // Every other time the mirror is all that is left.
    if (i % 2 == 1)
      fs::remove_all(here.run_directory("run"));
  }
  succeed(here, argv);
  CHECK(state(here, "run") == expected);
  CHECK(good_steps(place).back() == 12);
  CHECK_FALSE(is_copying(place));
}

TEST_CASE("a full mirror costs a warning, and keeps what it has until something newer fits") {
  scratch_runs here;
  auto disk = memory_file_system{here.path("mirror"), "size=8m"};
  if (!disk.mounted()) {
    std::puts("SKIP: file systems may not be mounted here");
    CHECK_FALSE(disk.mounted());
    return;
  }
  const auto place = here.path("mirror") / "run";
  // One checkpoint fits, two do not.
  const auto argv = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--mirror", here.path("mirror").string(), "--mirror-keep", "1", "--hidden", "192"});
    return here.charlm("run", more);
  };
  succeed(here, argv({"--steps", "2"}));
  REQUIRE(good_steps(place) == steps{2});
  std::uintmax_t size = 0;
  for (const auto& each : fs::directory_iterator{place / "checkpoints" / "step-00000002"})
    size += each.file_size();
  REQUIRE(size > 500'000);
  // A page for each file, and for what else the run writes.
  REQUIRE(disk.resize("size=" + std::to_string(2 * size + 500'000)));
  write_file(here.path("mirror") / "ballast", std::string(size / 2 + 400'000, 'x'));
  const auto full = succeed(here, argv({"--steps", "6", "--checkpoint-every", "1", "--mirror-wait", "3"}));
  INFO(full.err);
  CHECK(contains(full.err, "does not take the checkpoint of step"));
  CHECK(contains(full.err, "No space left on device"));
  CHECK(contains(full.err, "the mirror " + place.string() + " lacks the checkpoint of step 6"));
  const auto result = here.result("run");
  CHECK(result["status"] == "completed");
  CHECK(contains(result["mirror"]["lacks"], "step 6"));
  CHECK(result["mirror"]["failed_attempts"] > 0);
  CHECK(good_steps(place) == steps{2});
  // With room again, the next start makes up for it.
  fs::remove(here.path("mirror") / "ballast");
  succeed(here, argv({"--steps", "6"}));
  CHECK(good_steps(place) == steps{6});
  CHECK(here.result("run")["mirror"]["lacks"].is_null());
}

TEST_CASE("a mirror that cannot work is an error before the run begins") {
  scratch_runs here;
  refused(here, here.charlm("run", {"--mirror", "rclone:s3:bucket"}), {"rclone", "apt-get install rclone"},
          {{"PATH", "/nowhere"}});
  refused(here, here.charlm("run", {"--mirror", "rclone:s3"}), {"checkpoint.mirror.to", "rclone:REMOTE:PATH"});
  refused(here, here.charlm("run", {"--mirror", here.path("runs").string()}), {"run.storage_path"});
  write_file(here.path("file"), "");
  refused(here, here.charlm("run", {"--mirror", here.path("file").string()}), {here.path("file").string()});
  CHECK_FALSE(fs::exists(here.run_directory("run") / "result.json"));
  // By another name it is the same directory.
  fs::create_directory_symlink(here.path("runs"), here.path("link"));
  refused(here, here.charlm("run", {"--mirror", here.path("link").string()}), {"the run's own directory"});
}

TEST_CASE("a run that begins anew moves its mirror aside, and one that must be new refuses it") {
  scratch_runs here;
  const auto mirror = here.path("mirror");
  succeed(here, here.charlm("run", {"--mirror", mirror.string(), "--steps", "4"}));
  fs::remove_all(here.run_directory("run"));
  refused(here, here.charlm("run", {"--mirror", mirror.string(), "--resume", "never"}), {"never", mirror.string()});
  // Another program's run of the same name is not mixed with it.
  refused(here, here.charlm("run", {"--mirror", mirror.string(), "--batch", "65"}), {"\"batch\":65"});
  succeed(here, here.charlm("run", {"--mirror", mirror.string(), "--batch", "65", "--resume", "restart"}));
  CHECK(here.result("run")["resumed_from_step"] == 0);
  CHECK(good_steps(mirror / "run.1") == steps{4});
  const auto claim_at = [&](const fs::path& place) {
    return nlohmann::json::parse(read_file(place / "owner.json"))["claim"].get<int>();
  };
  CHECK(claim_at(mirror / "run") == claim_at(mirror / "run.1") + 1);
  CHECK(good_steps(mirror / "run") == steps{12});
}

TEST_CASE("a run of which the directory is lost resumes from S3, another begins with it, and the tool fetches it") {
  scratch_runs here;
  const auto s3 = start_s3(here.path(""));
  if (!s3)
    return;
  const auto expected = undisturbed(here);
  const auto mirror = std::vector<std::string>{"--mirror", "rclone:s3:bucket/runs"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), mirror.begin(), mirror.end());
    return here.charlm("run", more);
  };
  // Killed in the middle, perhaps of an upload: nobody notices later.
  auto driver = here.start(with({"--checkpoint-every", "1", "--steps", "1000000"}), s3->environment());
  here.await_step(driver, "run", 20);
  driver.signal(SIGKILL);
  driver.wait();
  CHECK(becomes_true([&] { return here.processes().empty(); }));
  fs::remove_all(here.run_directory("run"));
  succeed(here, with({"--resume", "restart", "--steps", "6", "--checkpoint-every", "2"}), s3->environment());
  fs::remove_all(here.run_directory("run"));
  succeed(here, with({"--resume", "required"}), s3->environment());
  CHECK(here.result("run")["resumed_from_step"] == 6);
  CHECK(state(here, "run") == expected);
  CHECK(here.result("run")["mirror"]["lacks"].is_null());

  const auto listed =
      succeed(here, {troupe_program(), "checkpoint", "ls", "rclone:s3:bucket/runs/run", "--json"}, s3->environment());
  CHECK(nlohmann::json::parse(listed.out)["checkpoints"].back()["step"] == 12);
  succeed(here, {troupe_program(), "checkpoint", "fetch", "rclone:s3:bucket/runs/run", here.path("fetched").string()},
          s3->environment());
  CHECK(stored_state(here.path("fetched") / "step-00000012") == expected);

  succeed(here, here.charlm("pupil", {"--from", "rclone:s3:bucket/runs/run/checkpoints/step-00000006", "--keep-step"}),
          s3->environment());
  CHECK(state(here, "pupil") == expected);
  CHECK(here.result("pupil")["loaded_from"] == "rclone:s3:bucket/runs/run/checkpoints/step-00000006");
  refused(here, here.charlm("other", {"--from", "rclone:s3:bucket/nothing"}), {"no checkpoint", "rclone:s3:bucket"},
          s3->environment());
}

TEST_CASE("a mirror that does not answer delays nothing but the end, which a second Ctrl-C hastens") {
  scratch_runs here;
  const auto s3 = start_s3(here.path(""));
  if (!s3)
    return;
  auto driver = here.start(
      here.charlm("run", {"--mirror", "rclone:s3:bucket/runs", "--steps", "1000000", "--checkpoint-every", "10"}),
      s3->environment());
  here.await_step(driver, "run", 10);
  s3->process().signal(SIGSTOP);
  // Training goes on.
  here.await_step(driver, "run", here.last_step("run") + 100);
  driver.signal(SIGINT);
  here.await(driver, [&] { return contains(read_file(here.run_directory("run") / "events.jsonl"), "\"ended\""); });
  CHECK(driver.running());
  driver.signal(SIGINT);
  CHECK(driver.wait() == exit_status{128 + SIGINT, {}});
  const auto result = here.result("run");
  CHECK(result["status"] == "stopped");
  CHECK(contains(result["mirror"]["lacks"], "the checkpoint of step"));
  CHECK(becomes_true([&] { return here.processes().empty(); }));
  s3->process().signal(SIGCONT);
}

#include "scratch_runs.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

using namespace troupe::testing;

namespace {

outcome succeed(scratch_runs& here, const std::string& name, std::vector<std::string> more = {}) {
  auto ran = here.run(here.charlm(name, std::move(more)));
  INFO(ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  return ran;
}

/// Runs a command that must fail with all of `parts` in its message.
void refused(scratch_runs& here, const std::vector<std::string>& argv, const std::vector<std::string>& parts) {
  auto ran = here.run(argv);
  INFO(ran.err);
  CHECK(ran.status == exit_status{1, {}});
  for (const auto& part : parts)
    CHECK_MESSAGE(contains(ran.err, part), "the message lacks: " << part);
}

std::string state(const scratch_runs& here, const std::string& name) {
  return here.result(name)["state_sha256"];
}

} // namespace

TEST_CASE("resume 'required' without a checkpoint fails") {
  scratch_runs here;
  refused(here, here.charlm("nothing", {"--resume", "required"}),
          {here.run_directory("nothing").string(), "checkpoint"});
}

TEST_CASE("resume 'never' with an existing run directory fails and does not change it") {
  scratch_runs here;
  succeed(here, "there");
  auto before = read_file(here.run_directory("there") / "result.json");
  refused(here, here.charlm("there", {"--resume", "never"}), {"never", here.run_directory("there").string()});
  CHECK(read_file(here.run_directory("there") / "result.json") == before);
  succeed(here, "not-there", {"--resume", "never"});
}

TEST_CASE("resume 'auto' with different settings that affect the result is rejected with the difference") {
  scratch_runs here;
  succeed(here, "run");
  auto original = state(here, "run");
  auto more_steps = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--steps", "20"});
    return here.charlm("run", more);
  };
  refused(here, more_steps({"--seed", "77"}), {"seed", "77 now", "1 in the checkpoint"});
  refused(here, more_steps({"--shards", "9"}), {"shards", "9 now", "8 in the checkpoint"});
  refused(here, more_steps({"--batch", "65"}), {"\"batch\":65", "\"batch\":64"});
  refused(here, more_steps({"--hidden", "48"}), {"\"hidden\":48", "\"hidden\":32"});
  auto text = read_file(here.text());
  auto other = text;
  other[100] = '#';
  write_file(here.text(), other);
  refused(here, more_steps({}), {"data fingerprint", "now", "in the checkpoint"});
  write_file(here.text(), text);
  // None of these did damage.
  succeed(here, "run", {"--steps", "20"});
  CHECK(here.result("run")["resumed_from_step"] == 12);
  CHECK(state(here, "run") != original);
}

TEST_CASE("runs without a name have a directory of their own each, and 'latest' leads to the last") {
  scratch_runs here;
  std::set<std::string> paths;
  for (const std::string seed : {"1", "2"}) {
    succeed(here, "", {"--seed", seed});
    const auto latest = here.result("latest");
    const auto path = std::filesystem::path{latest["path"].get<std::string>()};
    CHECK(path.filename().string().starts_with("charlm-2"));
    CHECK(latest["resumed_from_step"] == 0);
    CHECK(std::filesystem::equivalent(path, here.run_directory("latest")));
    paths.insert(path);
  }
  CHECK(paths.size() == 2);
  refused(here, here.charlm("", {"--from", here.path("no-such-checkpoint").string()}), {"no-such-checkpoint"});
}

TEST_CASE("a run of another program's or configuration is begun anew with '--resume restart', as its refusal says") {
  scratch_runs here;
  succeed(here, "run");
  const auto before = state(here, "run");
  refused(here, here.charlm("run", {"--batch", "65"}), {"--resume restart", "--name", "--from"});
  succeed(here, "run", {"--batch", "65", "--resume", "restart"});
  CHECK(here.result("run")["resumed_from_step"] == 0);
  CHECK(state(here, "run.1") == before);
  // The old one can go on.
  succeed(here, "run.1", {"--steps", "20"});
  CHECK(here.result("run.1")["resumed_from_step"] == 12);
}

TEST_CASE("a run goes on with a mended program where that is allowed, and every checkpoint and its result say so") {
  scratch_runs here;
  succeed(here, "run", {"--steps", "6", "--checkpoint-every", "6"});
  const auto first = here.result("run");
  CHECK(first["one_program"] == true);
  REQUIRE(first["programs"].size() == 1);
  CHECK(first["programs"][0]["last_step"] == 6);
  const auto mended = here.make_changed_charlm();
  auto argv = here.charlm("run", {"--workers", "2"});
  argv[0] = mended;
  refused(here, argv, {"program build", "--allow-changed program\n"});
  argv.insert(argv.end(), {"--allow-changed", "program"});
  auto ran = here.run(argv);
  INFO(ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  const auto second = here.result("run");
  CHECK(second["resumed_from_step"] == 6);
  CHECK(second["one_program"] == false);
  REQUIRE(second["programs"].size() == 2);
  CHECK(second["programs"][0] == first["programs"][0]);
  CHECK(second["programs"][1]["first_step"] == 7);
  CHECK(second["programs"][1]["last_step"] == 12);
  CHECK(second["programs"][1]["build_id"] != first["programs"][0]["build_id"]);
  // Steps and data order went on.
  succeed(here, "undisturbed");
  CHECK(state(here, "run") == state(here, "undisturbed"));
  // Its checkpoints know it: the mended program goes on alone, the first one does not.
  auto more = here.charlm("run", {"--steps", "14"});
  refused(here, more, {"program build"});
  more[0] = mended;
  REQUIRE(here.run(more).status == exit_status{0, {}});
  CHECK(here.result("run")["programs"].size() == 2);
  CHECK(here.result("run")["programs"][1]["last_step"] == 14);
}

TEST_CASE("a run begins with another run's latest checkpoint, names it, and can go on with its step number") {
  scratch_runs here;
  succeed(here, "teacher", {"--steps", "6"});
  const auto from = here.result("teacher")["latest_checkpoint"].get<std::string>();
  succeed(here, "pupil", {"--from", here.run_directory("teacher").string(), "--keep-step"});
  succeed(here, "undisturbed");
  CHECK(state(here, "pupil") == state(here, "undisturbed"));
  const auto pupil = here.result("pupil");
  CHECK(pupil["steps"] == 12);
  CHECK(pupil["loaded_from"] == from);
  CHECK(nlohmann::json::parse(read_file(here.run_directory("pupil") / "run.json"))["loaded_from"] == from);
  CHECK(here.result("undisturbed")["loaded_from"].is_null());
  // It is still known when the run is resumed.
  succeed(here, "pupil", {"--steps", "14"});
  CHECK(here.result("pupil")["loaded_from"] == from);
}

TEST_CASE("a run begins with the latest run's checkpoint, although it is the latest run itself from then on") {
  scratch_runs here;
  succeed(here, "", {"--steps", "6"});
  const auto latest = here.run_directory("latest");
  const auto teacher = std::filesystem::canonical(latest);
  succeed(here, "pupil", {"--from", latest.string(), "--keep-step", "--ledger"});
  succeed(here, "undisturbed");
  CHECK(state(here, "pupil") == state(here, "undisturbed"));
  CHECK(std::filesystem::path{here.result("pupil")["loaded_from"].get<std::string>()}.parent_path().parent_path() ==
        teacher);
  CHECK(nlohmann::json::parse(read_file(here.run_directory("pupil") / "run.json"))["replay"]["load"]["keep_step"] ==
        true);
}

TEST_CASE("a resumed run goes on counting its time, and says which step each metric is from") {
  scratch_runs here;
  const auto seconds_of = [&](std::size_t line) {
    return read_lines(here.run_directory("run") / "metrics.jsonl").at(line)["seconds"].get<double>();
  };
  succeed(here, "run", {"--evaluate-every", "6", "--steps", "6", "--workers", "1"});
  const auto before = seconds_of(5);
  succeed(here, "run", {"--evaluate-every", "1000", "--steps", "10", "--workers", "1"});
  CHECK(seconds_of(5) == before);
  CHECK(seconds_of(6) > before);
  const auto result = here.result("run");
  CHECK(result["metrics_from"]["held_out_loss"] == 10);
  CHECK(result["metrics_from"]["loss"] == 10);
}

TEST_CASE("a completed run completes again at once") {
  scratch_runs here;
  succeed(here, "run");
  auto before = here.result("run");
  succeed(here, "run", {"--workers", "3"});
  auto after = here.result("run");
  CHECK(after["state_sha256"] == before["state_sha256"]);
  CHECK(after["steps"] == 12);
  CHECK(after["resumed_from_step"] == 12);
  CHECK(after["status"] == "completed");
}

TEST_CASE("a new run starts with the state of another run's checkpoint") {
  scratch_runs here;
  succeed(here, "teacher");
  auto checkpoint = here.result("teacher")["latest_checkpoint"].get<std::string>();
  succeed(here, "pupil", {"--from", checkpoint, "--workers", "3", "--seed", "5"});
  succeed(here, "fresh", {"--seed", "5"});
  auto pupil = here.result("pupil");
  CHECK(pupil["resumed_from_step"] == 0);
  CHECK(pupil["steps"] == 12);
  CHECK(pupil["metrics"]["loss"].get<double>() < here.result("fresh")["metrics"]["loss"].get<double>());
  CHECK(state(here, "pupil") != state(here, "fresh"));
  refused(here, here.charlm("orphan", {"--from", here.path("no-such-checkpoint").string()}), {"no-such-checkpoint"});
}

TEST_CASE("a damaged checkpoint is skipped in favour of an older one, with a message") {
  scratch_runs here;
  succeed(here, "undisturbed", {"--steps", "12"});
  succeed(here, "run", {"--steps", "10", "--checkpoint-every", "5", "--workers", "2"});
  auto newest = std::filesystem::path{here.result("run")["latest_checkpoint"].get<std::string>()};
  auto part = std::filesystem::path{};
  for (const auto& entry : std::filesystem::directory_iterator{newest})
    if (entry.path().extension() == ".bin")
      part = entry.path();
  REQUIRE(!part.empty());
  auto bytes = read_file(part);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_file(part, bytes);
  auto ran = succeed(here, "run", {"--steps", "12"});
  INFO(ran.err);
  CHECK(contains(ran.err, "is damaged"));
  CHECK(contains(ran.err, part.filename().string()));
  CHECK(here.result("run")["resumed_from_step"] == 5);
  CHECK(state(here, "run") == state(here, "undisturbed"));
}

TEST_CASE("a run without any good checkpoint does not start again from the beginning") {
  scratch_runs here;
  succeed(here, "run");
  auto newest = std::filesystem::path{here.result("run")["latest_checkpoint"].get<std::string>()};
  for (const auto& entry : std::filesystem::directory_iterator{newest})
    std::filesystem::resize_file(entry.path(), std::filesystem::file_size(entry.path()) / 2);
  refused(here, here.charlm("run", {"--steps", "20"}), {newest.filename().string()});
}

TEST_CASE("a run directory has one driver at a time") {
  scratch_runs here;
  auto first = here.start(here.charlm("run", {"--steps", "100000000", "--workers", "2"}));
  here.await_step(first, "run");
  refused(here, here.charlm("run"), {"in use", std::to_string(first.pid()), here.run_directory("run").string()});
  first.signal(SIGTERM);
  CHECK(first.wait() == exit_status{143, {}});
  auto result = here.result("run");
  CHECK(result["status"] == "stopped");
  // Afterwards it is free.
  succeed(here, "run", {"--steps", std::to_string(result["steps"].get<int>() + 1)});
}

TEST_CASE("a killed run resumes from its latest checkpoint to the bits of an undisturbed one") {
  scratch_runs here;
  succeed(here, "undisturbed", {"--steps", "1500"});
  auto arguments = here.charlm("run", {"--steps", "1500", "--checkpoint-every", "50", "--workers", "2"});
  auto driver = here.start(arguments);
  here.await(driver, [&] { return !here.checkpoints("run").empty(); });
  driver.signal(SIGKILL);
  driver.wait();
  CHECK(here.workers_vanish());
  succeed(here, "run", {"--steps", "1500", "--workers", "3", "--resume", "required"});
  CHECK(here.result("run")["resumed_from_step"].get<int>() >= 50);
  CHECK(here.result("run")["resumed_from_step"].get<int>() % 50 == 0);
  CHECK(state(here, "run") == state(here, "undisturbed"));
  // The history contains each step once, and none is missing.
  std::vector<int> steps;
  for (const auto& row : read_lines(here.run_directory("run") / "metrics.jsonl"))
    if (row["rank"] == 0)
      steps.push_back(row["step"]);
  CHECK(steps.size() == 1500);
  CHECK(std::ranges::adjacent_find(steps, [](int a, int b) { return b != a + 1; }) == steps.end());
}

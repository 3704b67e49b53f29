#include "scratch_runs.hpp"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <doctest/doctest.h>
#include <random>
#include <set>
#include <string>
#include <sys/stat.h>
#include <tuple>
#include <vector>

using namespace troupe::testing;
namespace fs = std::filesystem;

namespace {

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// One bit of one gradient of `flipped_bit`. Lower bits are lost when shards are summed.
struct injection {
  static constexpr int lowest_bit = 5;

  int step = 0;
  int rank = 0;
  int element = 0;
  int bit = 31;

  /// The name of what it lies in.
  [[nodiscard]] std::string piece() const {
    if (element >= 5000 && element < 5300)
      return "'middle'";
    const auto [name, first, count] = element < 5000 ? std::tuple{"inner", 0, 5000} : std::tuple{"outer", 5300, 9000};
    const auto begin = (element - first) / 4096 * 4096;
    return "'" + std::string{name} + "' (its elements " + std::to_string(begin) + " to " +
           std::to_string(std::min(begin + 4095, count - 1)) + ")";
  }
};

/// The first and the last elements of tensors, steps and ranks, and others by chance.
std::vector<injection> make_injections(std::uint64_t seed) {
  auto random = std::mt19937_64{seed};
  auto below = [&random](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
  std::vector<injection> result{{1, 0, 0}, {7, 1, 5299}, {12, 2, 14'299}};
  result.resize(std::getenv("TROUPE_LONG_TESTS") == nullptr ? 6 : 60);
  for (auto each = result.begin() + 3; each != result.end(); ++each)
    *each = {1 + below(12), below(3), below(14'300)};
  for (auto& each : result)
    each.bit = injection::lowest_bit + below(32 - injection::lowest_bit);
  return result;
}

struct laboratory : scratch_runs {
  outcome troupe(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), troupe_program());
    return run(std::move(arguments), {{"TMPDIR", scratch().string()}});
  }

  outcome replay(const std::string& name, std::uint64_t step, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"replay", run_directory(name).string(), "--step", std::to_string(step)});
    return troupe(std::move(more));
  }

  /// Where replays have their temporary directories.
  [[nodiscard]] fs::path scratch() const {
    fs::create_directories(path("tmp"));
    return path("tmp");
  }

  /// A run of `flipped_bit`.
  void train(const std::string& name, int workers, const injection& flip = {}) {
    auto ran = run({built("tests/bin/flipped_bit"), std::to_string(workers), path("runs").string(), name,
                    std::to_string(flip.step), std::to_string(flip.rank), std::to_string(flip.element),
                    std::to_string(flip.bit)});
    INFO(ran.err);
    REQUIRE(ran.status == exit_status{0, {}});
  }

  /// Everything that tells whether a run's directory was touched.
  [[nodiscard]] std::set<std::tuple<std::string, std::uint64_t, std::int64_t, std::uint64_t>>
  files_of(const std::string& name) const {
    std::set<std::tuple<std::string, std::uint64_t, std::int64_t, std::uint64_t>> result;
    for (const auto& entry : fs::recursive_directory_iterator{run_directory(name)}) {
      struct stat info {};
      REQUIRE(::lstat(entry.path().c_str(), &info) == 0);
      result.emplace(entry.path().string(), info.st_size, info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec,
                     info.st_nlink);
    }
    return result;
  }
};

} // namespace

TEST_CASE("steps of a run that lost workers are repeated on 1, 2 and 8 workers with all digests equal") {
  laboratory here;
  constexpr std::uint64_t all_steps = 2'000;
  const auto steps = std::to_string(all_steps);
  auto driver = here.start(here.charlm(
      "killed", {"--workers", "4", "--steps", steps, "--ledger", "--checkpoint-every", "50", "--keep", "1000"}));
  std::uint64_t reached = 0;
  for (auto rank : {2, 0, 3}) {
    here.await_step(driver, "killed", reached);
    send_signal(here.worker_of_rank(rank), SIGKILL);
    reached += 150;
  }
  const auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{0, {}});
  CHECK(here.result("killed")["failures"].size() == 3);
  const auto shown = here.troupe({"run", "show", here.run_directory("killed").string()});
  INFO(shown.err);
  CHECK(shown.status == exit_status{0, {}});
  CHECK(has(shown.out, "killed: completed, 2000 steps"));
  CHECK(shown.out.find("SIGKILL") < shown.out.find("goodput"));
  const auto summary = here.troupe({"run", "show", "--json", here.run_directory("killed").string()});
  CHECK(nlohmann::json::parse(summary.out)["failures"].size() == 3);

  // Another number of workers, and no kills.
  REQUIRE(here.run(here.charlm("calm", {"--workers", "2", "--steps", steps, "--ledger"})).status == exit_status{0, {}});
  const auto compared =
      here.troupe({"bisect", here.run_directory("killed").string(), here.run_directory("calm").string()});
  INFO(compared.out << compared.err);
  CHECK(compared.status == exit_status{0, {}});
  CHECK(has(compared.out, "steps 1 to 2000: the digests of all 2000 steps that both runs have are equal"));

  const auto before = here.files_of("killed");
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  auto random = std::mt19937_64{seed};
  const auto repeats = std::getenv("TROUPE_LONG_TESTS") == nullptr ? 6 : 100;
  for (auto i = 0; i < repeats; ++i) {
    const auto step = random() % all_steps + 1;
    const auto* workers = std::array{"1", "2", "8"}[static_cast<std::size_t>(i) % 3];
    const auto replayed = here.replay("killed", step, {"--workers", workers});
    INFO("step " << step << " on " << workers << " workers: " << replayed.out << replayed.err);
    CHECK(replayed.status == exit_status{0, {}});
    CHECK(has(replayed.out, " to " + std::to_string(step) + " repeated: all digests equal"));
  }
  CHECK(here.files_of("killed") == before);
  CHECK(fs::is_empty(here.scratch()));
}

TEST_CASE(
    "bisect names the step and the tensor of one flipped bit, on whichever rank, and replay the run that has it") {
  laboratory here;
  here.train("good", 1);
  const auto* given = std::getenv("TROUPE_SEED");
  const auto seed = given != nullptr                              ? std::strtoull(given, nullptr, 10)
                    : std::getenv("TROUPE_LONG_TESTS") != nullptr ? std::random_device{}()
                                                                  : 20261125u;
  MESSAGE("TROUPE_SEED=", seed);
  auto number = 0;
  for (const auto& flip : make_injections(seed)) {
    const auto& [step, rank, element, bit] = flip;
    CAPTURE(step);
    CAPTURE(rank);
    CAPTURE(element);
    CAPTURE(bit);
    const auto tensor = flip.piece();
    const auto name = "bad-" + std::to_string(++number);
    here.train(name, 3, flip);
    const auto compared =
        here.troupe({"bisect", here.run_directory("good").string(), here.run_directory(name).string()});
    INFO(compared.out << compared.err);
    CHECK(compared.status == exit_status{1, {}});
    const auto line = compared.out.substr(0, compared.out.find('\n'));
    const auto wanted = "step " + std::to_string(step) + " is the first that differs, in the gradient of " + tensor;
    CHECK(line.starts_with(wanted));
    // It may have reached the slice of the state that was digested; no other part of the gradient differs.
    CHECK((line == wanted || line.starts_with(wanted + "; the state after it: ")));
    if (rank == 0)
      continue;
    // One worker has rank 0 only, so nothing is flipped.
    const auto replayed = here.replay(name, static_cast<std::uint64_t>(step));
    INFO(replayed.out << replayed.err);
    CHECK(replayed.status == exit_status{1, {}});
    CHECK(has(replayed.out, "step " + std::to_string(step) +
                                " differs from what the run has recorded, in the gradient "
                                "of " +
                                tensor));
  }
}

TEST_CASE("the first steps of a run that began with another's state, in which a tensor has another name, are repeated, "
          "from wherever") {
  laboratory here;
  const auto home = here.path("home");
  const auto elsewhere = here.path("elsewhere");
  for (const auto& each : {home, elsewhere})
    fs::create_directories(each);
  write_file(home / "scale", "0.25");
  write_file(elsewhere / "scale", "0.75");
  auto in = [](const fs::path& directory, std::vector<std::string> argv) {
    argv.insert(argv.begin(), {"/usr/bin/env", "-C", directory.string()});
    return argv;
  };
  auto train = [&](std::vector<std::string> more) {
    more.insert(more.begin(), built("tests/bin/flipped_bit"));
    const auto ran = here.run(in(home, std::move(more)));
    INFO(ran.err);
    REQUIRE(ran.status == exit_status{0, {}});
  };
  // All of its paths are relative to where it is made.
  train({"1", "runs", "first", "0", "0", "0", "0"});
  train({"2", "runs", "second", "0", "0", "0", "0", "runs/first"});
  const auto second = nlohmann::json::parse(read_file(home / "runs" / "second" / "result.json"));
  CHECK(has(second["loaded_from"].get<std::string>(), "runs/first/checkpoints/step-00000012"));
  CHECK(second["resumed_from_step"] == 0);
  for (const auto& run : {std::string{"../home/runs/second"}, (home / "runs" / "second").string()}) {
    const auto replayed = here.run(in(elsewhere, {troupe_program(), "replay", run, "--step", "3"}),
                                   {{"TMPDIR", here.scratch().string()}});
    INFO(replayed.out << replayed.err);
    CHECK(replayed.status == exit_status{0, {}});
    CHECK(has(replayed.out, "begins from the start: no checkpoint before step 3 is kept"));
    CHECK(has(replayed.out, "steps 1 to 3 repeated: all digests equal"));
  }
  CHECK(fs::is_empty(here.scratch()));
}

TEST_CASE("steps of a run that was made on caf-nodes are repeated without them") {
  laboratory here;
  {
    const auto a = here.start_node();
    const auto b = here.start_node();
    const auto ran = here.run(
        here.charlm("run", {"--nodes", a.address + "," + b.address, "--workers", "3", "--placement", "spread",
                            "--steps", "20", "--checkpoint-every", "8", "--checkpoints-in-flight", "0", "--ledger"}));
    INFO(ran.err);
    REQUIRE(ran.status == exit_status{0, {}});
  }
  CHECK(here.result("run")["workers"][0]["node"] != here.result("run")["workers"][2]["node"]);
  for (const std::string workers : {"1", "2"}) {
    const auto replayed = here.replay("run", 18, {"--until", "20", "--workers", workers});
    INFO(replayed.out << replayed.err);
    CHECK(replayed.status == exit_status{0, {}});
    CHECK(has(replayed.out, "begins from the checkpoint after step 16"));
    CHECK(has(replayed.out, "steps 17 to 20 repeated: all digests equal"));
  }
}

TEST_CASE("a step is repeated in one process under gdb") {
  laboratory here;
  if (here.run({"/usr/bin/env", "gdb", "--version"}).status != exit_status{0, {}}) {
    std::puts("SKIP: there is no gdb (apt install gdb)");
    return;
  }
  here.train("run", 3);
  write_file(here.path("commands"), "set debuginfod enabled off\nset disable-randomization off\nrun\n");
  auto tool = here.start(
      {troupe_program(), "replay", here.run_directory("run").string(), "--step", "11", "--until", "12", "--debug"},
      {{"TMPDIR", here.scratch().string()}}, here.path("commands"));
  const auto status = tool.wait();
  INFO(tool.out() << tool.err());
  CHECK(status == exit_status{0, {}});
  CHECK(has(tool.out(), "begins from the checkpoint after step 10"));
  CHECK(has(tool.out(), "exited normally"));
  CHECK(has(tool.out(), "steps 11 to 12 repeated: all digests equal"));
}

TEST_CASE("a program that a debugger starts again repeats the same steps") {
  laboratory here;
  if (here.run({"/usr/bin/env", "gdb", "--version"}).status != exit_status{0, {}}) {
    std::puts("SKIP: there is no gdb (apt install gdb)");
    return;
  }
  here.train("run", 3);
  const auto ledger_after = [&](const std::string& start) { return here.path("after-" + start); };
  const auto copy = "shell cp " + (here.scratch() / "troupe-replay-*/runs/run/ledger.jsonl").string() + " ";
  write_file(here.path("commands"), "set debuginfod enabled off\nset disable-randomization off\nrun\n" + copy +
                                        ledger_after("first").string() + "\nrun\n" + copy +
                                        ledger_after("second").string() + "\n");
  auto tool = here.start({troupe_program(), "replay", here.run_directory("run").string(), "--step", "11", "--debug"},
                         {{"TMPDIR", here.scratch().string()}}, here.path("commands"));
  const auto status = tool.wait();
  INFO(tool.out() << tool.err());
  CHECK(status == exit_status{0, {}});
  CHECK(has(tool.out(), "steps 11 to 11 repeated: all digests equal"));
  // Each has computed this step itself, and no other.
  const auto first = read_lines(ledger_after("first"));
  const auto second = read_lines(ledger_after("second"));
  REQUIRE(first.size() == 1);
  REQUIRE(second.size() == 1);
  CHECK(first[0]["step"] == 11);
  CHECK(second[0]["step"] == 11);
  CHECK(first[0]["pid"] != second[0]["pid"]);
}

TEST_CASE("a replay that is ended leaves nothing behind") {
  laboratory here;
  REQUIRE(here.run(here.charlm("run", {"--workers", "1", "--steps", "20000", "--ledger"})).status ==
          exit_status{0, {}});
  for (const auto signal : {SIGTERM, SIGHUP}) {
    auto tool = here.start({troupe_program(), "replay", here.run_directory("run").string(), "--step", "19000"},
                           {{"TMPDIR", here.scratch().string()}});
    here.await(tool, [&] { return !fs::is_empty(here.scratch()) && has(tool.out(), "begins from"); });
    tool.signal(signal);
    const auto status = tool.wait();
    INFO(tool.out() << tool.err());
    CHECK(status == exit_status{128 + signal, {}});
    CHECK(fs::is_empty(here.scratch()));
  }
}

TEST_CASE("steps of a program that a run went on with are repeated, and those of the one before are refused") {
  laboratory here;
  REQUIRE(
      here.run(here.charlm("run", {"--steps", "6", "--checkpoint-every", "6", "--keep", "10", "--ledger"})).status ==
      exit_status{0, {}});
  auto argv = here.charlm(
      "run", {"--steps", "12", "--checkpoint-every", "3", "--keep", "10", "--ledger", "--allow-changed", "program"});
  argv[0] = here.make_changed_charlm();
  const auto resumed = here.run(argv);
  INFO(resumed.err);
  REQUIRE(resumed.status == exit_status{0, {}});
  for (const auto step : {7, 11}) {
    const auto replayed = here.replay("run", static_cast<std::uint64_t>(step));
    INFO(replayed.out << replayed.err);
    CHECK(replayed.status == exit_status{0, {}});
    CHECK(has(replayed.out, " to " + std::to_string(step) + " repeated: all digests equal"));
  }
  auto refused = here.replay("run", 6);
  CHECK(refused.status == exit_status{2, {}});
  CHECK(has(refused.err, "step 6 was computed by an earlier program or with another configuration"));
  fs::remove_all(here.run_directory("run") / "checkpoints" / "step-00000006");
  refused = here.replay("run", 7);
  CHECK(refused.status == exit_status{2, {}});
  CHECK(has(refused.err, "the checkpoint after step 6, from which this program went on, is not kept"));
}

TEST_CASE("what cannot be repeated or compared is refused, with what to do about it") {
  laboratory here;
  auto refused = [](const outcome& what, std::string_view text) {
    INFO(what.out << what.err);
    CHECK(what.status == exit_status{2, {}});
    CHECK(has(what.err, text));
  };
  refused(here.replay("nothing", 1), "has no run.json");
  REQUIRE(here.run(here.charlm("plain", {"--workers", "1"})).status == exit_status{0, {}});
  refused(here.replay("plain", 1), "there is no ledger");
  refused(here.troupe({"bisect", here.run_directory("plain").string(), here.run_directory("plain").string()}),
          "train with run.keep_ledger");
  here.train("run", 2);
  refused(here.replay("run", 13), "it has those of steps 1 to 12");
  refused(here.replay("run", 5, {"--until", "500"}), "the ledger ends with step 12, before --until 500");
  refused(here.replay("run", 5, {"--until", "4"}), "--until 4 comes before --step 5");
  refused(here.replay("run", 5, {"--program", charlm_program()}), "is not the program of this run");
  refused(here.replay("run", 5, {"--program", here.path("missing").string()}), "cannot open the program");
  const auto ledger = here.run_directory("run") / "ledger.jsonl";
  write_file(ledger, "{\"step\":1,\"rank\":0}\n");
  refused(here.replay("run", 1), "has no digests");
}

TEST_CASE("the first steps of a run that began with another's checkpoint, and its step number, are repeated") {
  laboratory here;
  REQUIRE(here.run(here.charlm("teacher", {"--steps", "6"})).status == exit_status{0, {}});
  REQUIRE(here.run(here.charlm("pupil", {"--from", here.run_directory("teacher").string(), "--keep-step", "--ledger"}))
              .status == exit_status{0, {}});
  const auto replayed = here.replay("pupil", 7, {"--until", "8"});
  INFO(replayed.out << replayed.err);
  CHECK(replayed.status == exit_status{0, {}});
  CHECK(has(replayed.out, "steps 7 to 8 repeated: all digests equal"));
  // Also once it has been resumed, which need not name the other run again.
  REQUIRE(here.run(here.charlm("pupil", {"--ledger", "--steps", "14"})).status == exit_status{0, {}});
  const auto again = here.replay("pupil", 8);
  INFO(again.out << again.err);
  CHECK(again.status == exit_status{0, {}});
}

TEST_CASE("steps before the first checkpoint that is kept are repeated from the start, and none after the last") {
  laboratory here;
  here.train("whole", 2);
  const auto replayed = here.replay("whole", 3, {"--workers", "2"});
  INFO(replayed.out << replayed.err);
  CHECK(replayed.status == exit_status{0, {}});
  CHECK(has(replayed.out, "begins from the start: no checkpoint before step 3 is kept"));
  CHECK(has(replayed.out, "steps 1 to 3 repeated: all digests equal"));
}

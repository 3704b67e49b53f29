#include <troupe/actors/run_directory.hpp>
#include <troupe/actors/run_lock.hpp>

#include "memory_file_system.hpp"
#include "scratch.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>
#include <sys/wait.h>
#include <unistd.h>

using namespace troupe;
using namespace troupe::actors;
using serialization::overwrite_file;
using serialization::read_file;
using serialization::scratch_directory;
namespace fs = std::filesystem;

namespace {

run_config config_in(const fs::path& storage, resume_mode resume = resume_mode::automatic) {
  run_config result;
  result.name = "digits";
  result.storage_path = storage;
  result.resume = resume;
  return result;
}

bool says(const error& reason, const std::string& part) {
  return reason.message.find(part) != std::string::npos;
}

metrics_batch batch_of(std::uint32_t rank, std::initializer_list<std::uint64_t> steps) {
  metrics_batch result;
  result.worker = {rank};
  result.rank = {rank};
  for (auto step : steps) {
    result.rows.push_back(
        {{step}, step * 1'000'000, 1'795'689'600'250'000, {{"loss", 1.0 / static_cast<double>(step)}}});
    result.ledger.push_back({{step}, {1}, {rank, rank + 1}});
    result.times.push_back({{rank}, {1}, {step}, {step}, 1, 1'500'000, 250'000, 125'000});
  }
  return result;
}

/// The values of "step" in a file of JSON lines.
std::vector<std::uint64_t> steps_in(const fs::path& path) {
  std::vector<std::uint64_t> result;
  auto in = std::ifstream{path};
  for (std::string line; std::getline(in, line);)
    result.push_back(nlohmann::json::parse(line).at("step").get<std::uint64_t>());
  return result;
}

using steps = std::vector<std::uint64_t>;

} // namespace

TEST_CASE("a run's directory is made with all above it, and can be taken again once it is let go") {
  auto scratch = scratch_directory{};
  auto storage = scratch.path() / "a" / "b";
  {
    auto directory = run_directory::open(config_in(storage));
    REQUIRE(directory);
    CHECK(directory->root() == storage / "digits");
    CHECK(fs::is_directory(directory->checkpoints()));
    CHECK(fs::is_directory(storage / "digits" / "logs"));
  }
  CHECK(run_directory::open(config_in(storage)));
  CHECK(run_directory::open(config_in(storage, resume_mode::required)));
}

TEST_CASE("a directory that another driver holds is refused with its process id") {
  auto scratch = scratch_directory{};
  auto mine = run_directory::open(config_in(scratch.path()));
  REQUIRE(mine);
  auto second = run_directory::open(config_in(scratch.path()));
  REQUIRE_FALSE(second);
  CHECK(second.error().code == errc::already_exists);
  CHECK(says(second.error(), "process id " + std::to_string(::getpid())));
  CHECK(says(second.error(), "--name"));
}

TEST_CASE("a driver that may wait takes the directory when the other lets it go, and says for whom it waits") {
  auto scratch = scratch_directory{};
  auto other = std::optional{run_directory::open(config_in(scratch.path()))};
  REQUIRE(*other);
  auto patient = config_in(scratch.path());
  patient.lock_wait = std::chrono::minutes{1};
  auto told = std::string{};
  const auto mine = run_directory::open(patient, {{}, [&](std::string text) {
                                                    told = std::move(text);
                                                    other.reset();
                                                  }});
  CHECK(mine);
  CHECK(told.find("in use by the driver with process id " + std::to_string(::getpid())) != std::string::npos);
}

TEST_CASE("waiting for a directory ends with the time for it, and when somebody is in a hurry") {
  auto scratch = scratch_directory{};
  const auto other = run_directory::open(config_in(scratch.path()));
  REQUIRE(other);
  auto impatient = config_in(scratch.path());
  impatient.lock_wait = std::chrono::milliseconds{300};
  CHECK(run_directory::open(impatient).error().code == errc::already_exists);
  impatient.lock_wait = std::chrono::hours{1};
  auto hurry = std::stop_source{};
  CHECK(run_directory::open(impatient, {hurry.get_token(), [&](const std::string&) { hurry.request_stop(); }})
            .error()
            .code == errc::already_exists);
}

TEST_CASE("a directory whose driver was killed is free") {
  auto scratch = scratch_directory{};
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    auto held = run_directory::open(config_in(scratch.path()));
    auto byte = held ? 'y' : 'n';
    if (::write(ready[1], &byte, 1) == 1)
      for (;;)
        ::pause();
    ::_exit(1);
  }
  auto byte = '?';
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  CHECK(byte == 'y');
  auto refused = run_directory::open(config_in(scratch.path()));
  REQUIRE(::kill(child, SIGKILL) == 0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  ::close(ready[0]);
  ::close(ready[1]);
  REQUIRE_FALSE(refused);
  CHECK(says(refused.error(), "process id " + std::to_string(child)));
  CHECK(run_directory::open(config_in(scratch.path())));
}

TEST_CASE("resume 'never' refuses a directory in which a run has begun, and takes one in which none has") {
  auto scratch = scratch_directory{};
  CHECK(run_directory::open(config_in(scratch.path(), resume_mode::never)));
  {
    auto first = run_directory::open(config_in(scratch.path(), resume_mode::never));
    REQUIRE(first);
    REQUIRE(first->write_run({{"run", "1"}}));
  }
  auto again = run_directory::open(config_in(scratch.path(), resume_mode::never));
  REQUIRE_FALSE(again);
  CHECK(again.error().code == errc::already_exists);
  CHECK(says(again.error(), "resume_mode::never"));
  CHECK(says(again.error(), "--resume restart"));
}

TEST_CASE("resume 'restart' moves aside what a run has left, under a name of its own each time") {
  auto scratch = scratch_directory{};
  for (const auto* run : {"1", "2", "3"}) {
    auto directory = run_directory::open(config_in(scratch.path(), resume_mode::restart));
    REQUIRE(directory);
    CHECK_FALSE(fs::exists(directory->root() / "run.json"));
    CHECK(directory->moved_aside().empty() == (std::string{run} == "1"));
    REQUIRE(directory->write_run({{"run", run}}));
  }
  CHECK(nlohmann::json::parse(read_file(scratch.path() / "digits.1" / "run.json"))["run"] == "1");
  CHECK(nlohmann::json::parse(read_file(scratch.path() / "digits.2" / "run.json"))["run"] == "2");
  // The old run is a run.
  auto old = config_in(scratch.path());
  old.name = "digits.1";
  CHECK(run_directory::open(old));
}

TEST_CASE("resume 'restart' leaves a directory where it is that a driver holds") {
  auto scratch = scratch_directory{};
  auto mine = run_directory::open(config_in(scratch.path()));
  REQUIRE(mine);
  REQUIRE(mine->write_run({{"run", "1"}}));
  auto second = run_directory::open(config_in(scratch.path(), resume_mode::restart));
  REQUIRE_FALSE(second);
  CHECK(second.error().code == errc::already_exists);
  CHECK(fs::exists(scratch.path() / "digits" / "run.json"));
  CHECK_FALSE(fs::exists(scratch.path() / "digits.1"));
}

TEST_CASE("a moved directory stays locked until its last owner goes") {
  auto scratch = scratch_directory{};
  std::optional<run_directory> kept;
  {
    auto directory = run_directory::open(config_in(scratch.path()));
    REQUIRE(directory);
    kept = std::move(*directory);
  }
  CHECK_FALSE(run_directory::open(config_in(scratch.path())));
  kept.reset();
  CHECK(run_directory::open(config_in(scratch.path())));
}

TEST_CASE("a storage path that is a file is refused with the path and what to do") {
  auto scratch = scratch_directory{};
  overwrite_file(scratch.path() / "file", "text");
  auto directory = run_directory::open(config_in(scratch.path() / "file"));
  REQUIRE_FALSE(directory);
  CHECK(directory.error().code == errc::io_error);
  CHECK(says(directory.error(), (scratch.path() / "file").string()));
  CHECK(says(directory.error(), "choose another storage path"));
}

TEST_CASE("a read-only storage path is refused with what to do") {
  auto scratch = scratch_directory{};
  auto small = testing::memory_file_system{scratch.path(), "size=16k"};
  if (!small.mounted() || !small.make_read_only()) {
    std::puts("SKIP: file systems may not be mounted here");
    return;
  }
  auto directory = run_directory::open(config_in(scratch.path()));
  REQUIRE_FALSE(directory);
  CHECK(directory.error().code == errc::io_error);
  CHECK(says(directory.error(), "Read-only file system"));
  CHECK(says(directory.error(), "choose another storage path"));
}

TEST_CASE("a full storage path is refused with what to do, and losing lines to it ends nothing") {
  auto scratch = scratch_directory{};
  auto small = testing::memory_file_system{scratch.path(), "size=16k"};
  if (!small.mounted()) {
    std::puts("SKIP: file systems may not be mounted here");
    return;
  }
  {
    auto directory = run_directory::open(config_in(scratch.path()));
    REQUIRE(directory);
    REQUIRE(directory->rewind({0}));
    auto failed = 0;
    for (std::uint64_t step = 1; step < 500; ++step)
      failed += directory->append(batch_of(0, {step}), 1) ? 0 : 1;
    CHECK(failed > 100);
    CHECK(directory->take_dropped() == 0);
    // Whole lines, from the first on, without a gap.
    const auto there = steps_in(directory->root() / "metrics.jsonl");
    REQUIRE(there.size() > 10);
    for (std::uint64_t i = 0; i < there.size(); ++i)
      CHECK(there[i] == i + 1);
    auto written = directory->write_result({});
    REQUIRE_FALSE(written);
    CHECK(written.error().code == errc::io_error);
  }
  overwrite_file(scratch.path() / "filler", std::string(65536, '.'));
  auto again = run_directory::open(config_in(scratch.path()));
  REQUIRE_FALSE(again);
  CHECK(again.error().code == errc::io_error);
  CHECK(says(again.error(), "No space left on device"));
  CHECK(says(again.error(), "free space"));
}

TEST_CASE("rewinding that fails can be tried again, and loses nothing") {
  auto scratch = scratch_directory{};
  auto disk = testing::memory_file_system{scratch.path(), "size=1m"};
  if (!disk.mounted()) {
    std::puts("SKIP: file systems may not be mounted here");
    return;
  }
  auto directory = run_directory::open(config_in(scratch.path()));
  REQUIRE(directory);
  REQUIRE(directory->rewind({0}));
  CHECK(directory->append(batch_of(0, {1, 2}), 1));
  {
    const auto filler = scratch.path() / "filler";
    overwrite_file(filler, std::string(std::size_t{2} << 20, '.'));
    for (std::uint64_t step = 3; step < 200; ++step)
      std::ignore = directory->append(batch_of(0, {step}), 1);
    const auto failed = directory->rewind({150});
    REQUIRE_FALSE(failed);
    CHECK(failed.error().code == errc::io_error);
    fs::remove(filler);
  }
  REQUIRE(directory->rewind({150}));
  const auto there = steps_in(directory->root() / "metrics.jsonl");
  REQUIRE(there.size() == 150);
  for (std::uint64_t i = 0; i < there.size(); ++i)
    CHECK(there[i] == i + 1);
}

TEST_CASE("rewinding files of several megabytes keeps each line up to the step, in order") {
  constexpr std::uint64_t all = 20'000;
  constexpr std::uint64_t kept = 15'000;
  auto scratch = scratch_directory{};
  auto directory = run_directory::open(config_in(scratch.path()));
  REQUIRE(directory);
  REQUIRE(directory->rewind({0}));
  for (std::uint64_t step = 1; step <= all; ++step)
    REQUIRE(directory->append(batch_of(0, {step}), 1));
  for (const auto* file : {"metrics.jsonl", "ledger.jsonl"})
    REQUIRE(fs::file_size(directory->root() / file) > 3 << 19);
  REQUIRE(directory->rewind({kept}));
  for (const auto* file : {"metrics.jsonl", "ledger.jsonl"}) {
    CAPTURE(file);
    const auto there = steps_in(directory->root() / file);
    REQUIRE(there.size() == kept);
    for (std::uint64_t i = 0; i < kept; ++i)
      REQUIRE(there[i] == i + 1);
  }
}

TEST_CASE("metrics, ledger and times are one line for each row") {
  auto scratch = scratch_directory{};
  auto directory = run_directory::open(config_in(scratch.path()));
  REQUIRE(directory);
  REQUIRE(directory->rewind({0}));
  CHECK(directory->append(batch_of(1, {4, 5}), 4711));
  auto metrics = read_file(directory->root() / "metrics.jsonl");
  CHECK(metrics == "{\"step\":4,\"rank\":1,\"seconds\":4.0,\"time\":\"2026-11-26T10:40:00.250Z\",\"loss\":0.25}\n"
                   "{\"step\":5,\"rank\":1,\"seconds\":5.0,\"time\":\"2026-11-26T10:40:00.250Z\",\"loss\":0.2}\n");
  auto ledger = read_file(directory->root() / "ledger.jsonl");
  CHECK(ledger.starts_with("{\"step\":4,\"generation\":1,\"rank\":1,\"pid\":4711,\"first_shard\":1,\"last_shard\":2,"
                           "\"samples_digest\":0}\n"));
  auto times = read_file(directory->root() / "times.jsonl");
  CHECK(times.starts_with("{\"step\":4,\"first_step\":4,\"rank\":1,\"generation\":1,\"steps\":1,\"compute\":1.5,"
                          "\"wait\":0.25,\"barrier\":0.125,\"checkpoint\":0.0,\"sent_bytes\":0}\n"));
}

TEST_CASE("a line of the ledger has the digests of the step, and the names of their pieces where they are told") {
  auto scratch = scratch_directory{};
  auto directory = run_directory::open(config_in(scratch.path()));
  REQUIRE(directory);
  REQUIRE(directory->rewind({0}));
  auto batch = batch_of(1, {4});
  batch.ledger[0].digest = {
      3, 2, {7, ~std::uint64_t{0}}, 9, R"json({"pieces":["a","b","c"],"slices":[["values()",1]]})json"};
  CHECK(directory->append(batch, 4711));
  const auto line = nlohmann::json::parse(read_file(directory->root() / "ledger.jsonl"));
  CHECK(line["digest"] ==
        nlohmann::json{{"pieces", 3}, {"first_piece", 2}, {"gradient", {7, ~std::uint64_t{0}}}, {"state", 9}});
  CHECK(line["names"]["pieces"].size() == 3);
}

TEST_CASE("a run without a ledger has no file of it") {
  auto scratch = scratch_directory{};
  auto directory = run_directory::open(config_in(scratch.path()));
  REQUIRE(directory);
  REQUIRE(directory->rewind({0}));
  auto batch = batch_of(0, {1});
  batch.ledger.clear();
  CHECK(directory->append(batch, 1));
  CHECK_FALSE(fs::exists(directory->root() / "ledger.jsonl"));
}

TEST_CASE(
    "rewinding drops the lines of later steps, a torn last line and what is none of ours, and goes on after them") {
  auto scratch = scratch_directory{};
  auto root = scratch.path() / "digits";
  {
    auto directory = run_directory::open(config_in(scratch.path()));
    REQUIRE(directory);
    REQUIRE(directory->rewind({0}));
    CHECK(directory->append(batch_of(0, {1, 2, 3, 4}), 1));
    CHECK(directory->append(batch_of(1, {1, 2, 3}), 1));
  }
  auto text = read_file(root / "metrics.jsonl");
  overwrite_file(root / "metrics.jsonl", text + "17\n\n\"text\"\n{\"step\":\"one\"}\n{\"rank\":0}\n{\"step\":2,\"ra");
  auto directory = run_directory::open(config_in(scratch.path()));
  REQUIRE(directory);
  REQUIRE(directory->rewind({2}));
  CHECK(steps_in(root / "metrics.jsonl") == steps{1, 2, 1, 2});
  CHECK(steps_in(root / "ledger.jsonl") == steps{1, 2, 1, 2});
  CHECK(steps_in(root / "times.jsonl") == steps{1, 2, 1, 2});
  CHECK(directory->append(batch_of(0, {3}), 1));
  CHECK(steps_in(root / "metrics.jsonl") == steps{1, 2, 1, 2, 3});
  CHECK(steps_in(root / "ledger.jsonl") == steps{1, 2, 1, 2, 3});
  CHECK(steps_in(root / "times.jsonl") == steps{1, 2, 1, 2, 3});
}

TEST_CASE("what is left of the metrics says which values there were, from which steps, and for how long it trained") {
  auto scratch = scratch_directory{};
  auto directory = run_directory::open(config_in(scratch.path()));
  REQUIRE(directory);
  REQUIRE(directory->rewind({0}));
  metrics_batch batch;
  batch.rows = {{{2}, 2'000'000, 0, {{"accuracy", 0.5}, {"loss", 4}, {"step", 17}}},
                {{3}, 3'500'000, 0, {{"loss", 3}, {"odd", std::nan("")}}},
                {{4}, 9'000'000, 0, {{"loss", 1}}}};
  CHECK(directory->append(batch, 1));
  batch.rank = {1};
  batch.rows = {{{3}, 3'750'000, 0, {{"loss", 100}}}};
  CHECK(directory->append(batch, 1));
  const auto kept = directory->history_until({3});
  const auto rewound = directory->rewind({3});
  REQUIRE(rewound);
  for (const auto& history : {kept, *rewound}) {
    CHECK(history.metrics == metric_map{{"accuracy", 0.5}, {"loss", 3}, {"step", 17}});
    CHECK(history.metrics_from == metric_steps{{"accuracy", 2}, {"loss", 3}, {"step", 2}});
    CHECK(history.seconds == 3.75);
  }
}

TEST_CASE("events are appended over all processes of a run, after a torn line, too") {
  auto scratch = scratch_directory{};
  const auto path = scratch.path() / "digits" / "events.jsonl";
  const auto when = std::chrono::system_clock::time_point{std::chrono::milliseconds{1'795'689'600'250}};
  {
    auto directory = run_directory::open(config_in(scratch.path()));
    REQUIRE(directory);
    CHECK(directory->append_event(when, {{"event", "one"}}));
  }
  std::ofstream{path, std::ios::app} << R"({"time": "2026)";
  auto directory = run_directory::open(config_in(scratch.path()));
  REQUIRE(directory);
  REQUIRE(directory->rewind({0}));
  CHECK(directory->append_event(when, {{"event", "two"}}));
  CHECK(read_file(path) == "{\"time\":\"2026-11-26T10:40:00.250Z\",\"event\":\"one\"}\n"
                           "{\"time\":\"2026-11-26T10:40:00.250Z\",\"event\":\"two\"}\n");
}

TEST_CASE("a run that begins anew begins its files anew") {
  auto scratch = scratch_directory{};
  auto directory = run_directory::open(config_in(scratch.path()));
  REQUIRE(directory);
  overwrite_file(directory->root() / "metrics.jsonl", "{\"step\":0}\n{\"step\":1}\n");
  REQUIRE(directory->rewind({0}));
  CHECK(read_file(directory->root() / "metrics.jsonl").empty());
}

TEST_CASE("what the workers wrote is kept, one file for each") {
  auto scratch = scratch_directory{};
  auto directory = run_directory::open(config_in(scratch.path()));
  REQUIRE(directory);
  CHECK(directory->append_output({{}, {1}, 0, {"one", "\xff"}}, {1}));
  CHECK(directory->append_output({{}, {0}, 0, {"zero"}}, {0}));
  CHECK(directory->append_output({{}, {1}, 0, {"two"}}, {1}));
  CHECK(read_file(directory->root() / "logs" / "worker-1.log") == "one\n\xff\ntwo\n");
  CHECK(read_file(directory->root() / "logs" / "worker-0.log") == "zero\n");
  CHECK(read_file(directory->root() / "logs" / "ranks.jsonl") ==
        "{\"worker\":1,\"rank\":1}\n{\"worker\":0,\"rank\":0}\n");
  CHECK(directory->append_output({{}, {1}, 0, {"three"}}, {0}));
  CHECK(read_file(directory->root() / "logs" / "ranks.jsonl").ends_with("{\"worker\":1,\"rank\":0}\n"));
}

TEST_CASE("a worker's log that is full is begun anew, and one older log is kept") {
  auto scratch = scratch_directory{};
  auto config = config_in(scratch.path());
  config.worker_log_bytes = 10;
  auto directory = run_directory::open(config);
  REQUIRE(directory);
  const auto log = directory->root() / "logs" / "worker-0.log";
  for (const auto* line : {"1234", "6789", "third", "a line longer than the limit", "last"})
    REQUIRE(directory->append_output({{}, {0}, 0, {line}}, {0}));
  CHECK(read_file(log) == "last\n");
  CHECK(read_file(log.string() + ".1") == "a line longer than the limit\n");
}

TEST_CASE("the lock says who holds a directory, and whether that process lives") {
  auto scratch = scratch_directory{};
  const auto root = scratch.path() / "digits";
  CHECK_FALSE(read_lock_holder(root));
  {
    const auto directory = run_directory::open(config_in(scratch.path()));
    REQUIRE(directory);
    const auto holder = read_lock_holder(root);
    REQUIRE(holder);
    CHECK(*holder == lock_holder{static_cast<std::uint32_t>(::getpid()), lock_host()});
    CHECK(life_of(*holder, root) == holder_life::lives);
    CHECK(life_of({holder->pid, "another host"}, root) == holder_life::unknown);
  }
  CHECK_FALSE(read_lock_holder(root));
  // The process lives, and has given the directory up: as with a process id that was used again.
  CHECK(life_of({static_cast<std::uint32_t>(::getpid()), lock_host()}, root) == holder_life::is_gone);
  // Above the greatest process id there can be.
  CHECK(life_of({(1u << 22) + 1, lock_host()}, root) == holder_life::is_gone);
}

TEST_CASE("run.json and result.json are replaced whole") {
  auto scratch = scratch_directory{};
  auto directory = run_directory::open(config_in(scratch.path()));
  REQUIRE(directory);
  REQUIRE(directory->write_run({{"seed", 1}}));
  REQUIRE(directory->write_run({{"seed", 2}}));
  CHECK(nlohmann::json::parse(read_file(directory->root() / "run.json")) == nlohmann::json{{"seed", 2}});
  run_result result;
  result.steps = 7;
  REQUIRE(directory->write_result(result));
  CHECK(read_file(directory->root() / "result.json") == to_json(result));
}

TEST_CASE("a run goes on from its own checkpoint, and from no other") {
  auto then = serialization::sample_manifest();
  auto same = run_identity{then.program_build_id, then.seed, then.shards, then.tree_version, then.configuration_json};
  CHECK(compare_with_checkpoint(same, then, {}));
  struct row {
    const char* field;
    void (*change)(run_identity&);
  };
  for (auto [field, change] :
       {row{"program build: other now, c0ffee in the checkpoint", [](auto& x) { x.build_id = "other"; }},
        row{"seed: 5 now", [](auto& x) { x.seed = 5; }},
        row{"shards (V): 8 now, 24 in the checkpoint", [](auto& x) { x.shards = 8; }},
        row{"summation tree: 9 now", [](auto& x) { x.tree_version = 9; }},
        row{"configuration: {} now", [](auto& x) { x.configuration = "{}"; }}}) {
    auto changed = same;
    change(changed);
    auto result = compare_with_checkpoint(changed, then, {});
    REQUIRE_FALSE(result);
    CHECK(result.error().code == errc::mismatch);
    CAPTURE(result.error().message);
    CHECK(says(result.error(), field));
    CHECK(says(result.error(), "step 100"));
    CHECK(says(result.error(), "load_checkpoint"));
  }
  auto all = compare_with_checkpoint({}, then, {});
  REQUIRE_FALSE(all);
  for (const auto* field : {"program build", "seed", "shards", "summation tree", "configuration"})
    CHECK(says(all.error(), field));
}

TEST_CASE("a run goes on with a changed program or configuration where that is allowed, and its refusal says how") {
  auto then = serialization::sample_manifest();
  const auto same =
      run_identity{then.program_build_id, then.seed, then.shards, then.tree_version, then.configuration_json};
  auto program = same;
  program.build_id = "fixed";
  CHECK(compare_with_checkpoint(program, then, {.program = true}));
  CHECK_FALSE(compare_with_checkpoint(program, then, {.configuration = true, .libraries = true}));
  CHECK(compare_with_checkpoint(program, then, {}).error().message.ends_with("--allow-changed program"));
  auto both = program;
  both.configuration = "{}";
  CHECK(compare_with_checkpoint(both, then, {.program = true, .configuration = true}));
  const auto refused = compare_with_checkpoint(both, then, {.program = true});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.ends_with("--allow-changed program,configuration"));
  // Nothing allows another data order.
  auto seed = program;
  seed.seed = 5;
  const auto other = compare_with_checkpoint(seed, then, {.program = true});
  REQUIRE_FALSE(other);
  CHECK(says(other.error(), "seed: 5 now"));
  CHECK_FALSE(says(other.error(), "--allow-changed"));
}

TEST_CASE("tensors are described one per line, as plans compare them") {
  CHECK(describe_tensors({}).empty());
  CHECK(describe_tensors({{"w", dtype::f32, {3, 4}}, {"scalar", dtype::i64, {}}, {"empty", dtype::boolean, {0}}}) ==
        "w f32 [3, 4]\nscalar i64 []\nempty bool [0]");
}

TEST_CASE("a checkpoint's plan is what a worker with the same state would say") {
  auto then = serialization::sample_manifest();
  then.tensors = {{{"w", dtype::f32, {3, 4}}, {}}, {{"b", dtype::f32, {4}}, {}}};
  auto plan = plan_of(then);
  CHECK(plan.batch_samples == then.global_batch);
  CHECK(plan.data_fingerprint == then.data_fingerprint);
  CHECK(plan.numerics == then.numerics_fingerprint_json);
  CHECK(plan.tensors == describe_tensors({{"w", dtype::f32, {3, 4}}, {"b", dtype::f32, {4}}}));
}

TEST_CASE("another driver goes on with the files, and leaves out what is sent once more") {
  auto scratch = scratch_directory{};
  const auto root = scratch.path() / "digits";
  const auto output = worker_output{{}, {0}, 1, {"a line", "another"}};
  {
    auto directory = run_directory::open(config_in(scratch.path()));
    REQUIRE(directory);
    REQUIRE(directory->rewind({0}));
    REQUIRE(directory->append(batch_of(0, {1, 2, 3}), 100));
    REQUIRE(directory->append_output(output, {0}));
  }
  // It was killed in the middle of a line.
  std::ofstream{root / "metrics.jsonl", std::ios::app} << R"({"step": 4, "ra)";
  auto directory = run_directory::open(config_in(scratch.path()));
  REQUIRE(directory);
  directory->continue_files();
  REQUIRE(directory->append(batch_of(0, {2, 3, 4}), 100));
  CHECK(steps_in(root / "metrics.jsonl") == steps{1, 2, 3, 4});
  CHECK(steps_in(root / "ledger.jsonl") == steps{1, 2, 3, 4});
  CHECK(steps_in(root / "times.jsonl") == steps{1, 2, 3, 4});
  // Only the first of each may have been sent before.
  REQUIRE(directory->append(batch_of(0, {4}), 100));
  CHECK(steps_in(root / "metrics.jsonl") == steps{1, 2, 3, 4, 4});
  REQUIRE(directory->append_output(output, {0}));
  REQUIRE(directory->append_output(output, {0}));
  CHECK(read_file(root / "logs" / "worker-0.log") == "a line\nanother\na line\nanother\n");
}

#include "scratch_runs.hpp"

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/result.hpp>
#include <troupe/runtime/control_socket.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

using namespace troupe::testing;
using nlohmann::json;

namespace {

const auto endless = std::string{"100000000"};

/// The tool, for the runs of one test.
struct control {
  scratch_runs here;

  [[nodiscard]] std::vector<std::string> arguments(std::vector<std::string> words) const {
    words.insert(words.begin(), troupe_program());
    return words;
  }

  [[nodiscard]] outcome tool(std::vector<std::string> words) {
    // Most commands take it.
    if (words.front() != "runs")
      words.insert(words.end(), {"--storage", here.path("runs").string()});
    return here.run(arguments(std::move(words)));
  }

  [[nodiscard]] json status(const std::string& name) {
    const auto ran = tool({"status", name, "--json"});
    INFO(ran.err);
    const auto result = json::parse(ran.out, nullptr, false);
    REQUIRE(result.is_object());
    return result;
  }

  void await_state(child_process& driver, const std::string& name, const std::string& state) {
    scratch_runs::await(driver, [&] { return status(name)["state"] == state; });
  }
};

troupe::collectives::unique_fd connect(const std::filesystem::path& run) {
  auto made = troupe::runtime::connect_to_run(run);
  REQUIRE(made);
  return troupe::collectives::unique_fd{*made};
}

} // namespace

TEST_CASE("a run is watched, paused, resized, saved and stopped from another terminal") {
  control t;
  // A socket's address has 108 bytes.
  const auto name = std::string(120, 'n');
  auto driver = t.here.start(t.here.charlm(name, {"--workers", "2", "--steps", endless}));
  t.here.await_step(driver, name, 20);
  const auto training = t.status(name);
  INFO(training.dump(2));
  CHECK(training["state"] == "running");
  CHECK(training["workers"].size() == 2);
  CHECK(training["steps"] == 100000000);
  CHECK(training["metrics"].contains("loss"));
  CHECK(training["driver"]["pid"] == driver.pid());
  const auto text = t.tool({"status", name});
  CHECK(text.status == exit_status{0, {}});
  CHECK(contains(text.out, "running for"));
  const auto list = t.tool({"runs", t.here.path("runs").string()});
  CHECK(list.status == exit_status{0, {}});
  CHECK(contains(list.out, "running"));

  const auto paused = t.tool({"run", "pause", name});
  INFO(paused.err);
  CHECK(paused.status == exit_status{0, {}});
  CHECK(contains(paused.out, "paused after step"));
  // No step passes.
  const auto held = t.status(name);
  CHECK(held["state"] == "paused");
  const auto still = t.here.last_step(name);
  CHECK(held["step"].get<std::uint64_t>() >= still);
  std::this_thread::sleep_for(300ms);
  CHECK(t.status(name)["step"] == held["step"]);

  const auto resumed = t.tool({"run", "resume", name});
  CHECK(resumed.status == exit_status{0, {}});
  CHECK(resumed.out == "resumed\n");
  t.here.await_step(driver, name, held["step"].get<std::uint64_t>());
  CHECK(t.tool({"run", "resume", name}).status == exit_status{1, {}});

  CHECK(t.tool({"run", "resize", name, "3"}).status == exit_status{0, {}});
  t.here.await(driver, [&] { return t.status(name)["workers"].size() == 3; });
  const auto absurd = t.tool({"run", "resize", name, "1000"});
  CHECK(absurd.status == exit_status{1, {}});
  CHECK(contains(absurd.err, "1000"));

  const auto saved = t.tool({"checkpoint", "now", name});
  INFO(saved.err);
  CHECK(saved.status == exit_status{0, {}});
  REQUIRE(saved.out.ends_with("\n"));
  auto opened = troupe::serialization::checkpoint::open(saved.out.substr(0, saved.out.size() - 1));
  CHECK(opened.has_value());

  const auto stopped = t.tool({"stop", name});
  INFO(stopped.err);
  CHECK(stopped.status == exit_status{0, {}});
  CHECK(driver.wait() == exit_status{0, {}});
  const auto result = t.here.result(name);
  CHECK(result["status"] == "stopped");
  CHECK(contains(stopped.out, "stopped after step " + result["steps"].dump()));
  CHECK(contains(stopped.out, result["latest_checkpoint"].get<std::string>()));
  CHECK(stored_state(result["latest_checkpoint"].get<std::string>()) == result["state_sha256"]);
  CHECK_FALSE(std::filesystem::exists(t.here.run_directory(name) / troupe::runtime::control_socket_name));

  CHECK(t.status(name)["state"] == "stopped");
  CHECK(t.tool({"stop", name}).status == exit_status{0, {}});
  const auto late = t.tool({"run", "pause", name});
  CHECK(late.status == exit_status{1, {}});
  CHECK(contains(late.err, "has ended"));
  CHECK(t.tool({"status", "missing"}).status == exit_status{2, {}});
}

TEST_CASE("connections that say nothing, flood or do not read, and all commands, change no bit of a run") {
  control t;
  const auto steps = std::string{"3000"};
  const auto undisturbed = t.here.run(t.here.charlm("undisturbed", {"--workers", "1", "--steps", steps}));
  REQUIRE(undisturbed.status == exit_status{0, {}});
  auto driver = t.here.start(t.here.charlm("disturbed", {"--workers", "3", "--steps", steps}));
  t.here.await_step(driver, "disturbed", 10);
  const auto run = t.here.run_directory("disturbed");
  std::vector<troupe::collectives::unique_fd> silent;
  for (auto i = 0; i < 100; ++i)
    silent.push_back(connect(run));
  // Watches, and never reads.
  const auto stuck = connect(run);
  const auto watch = std::string{"{\"request\":\"watch\"}\n"};
  REQUIRE(::send(stuck.get(), watch.data(), watch.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(watch.size()));
  auto floods = std::vector<std::jthread>{};
  for (const auto& line :
       {std::string{"{\"request\":\"status\"}\n"}, std::string{"nonsense\n"}, std::string(3000, 'x')})
    floods.emplace_back([&run, line](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        auto made = troupe::runtime::connect_to_run(run);
        const auto stream = troupe::collectives::unique_fd{made.value_or(-1)};
        if (!stream)
          return;
        while (!stop.stop_requested() &&
               ::send(stream.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
          std::this_thread::yield();
        std::this_thread::sleep_for(10ms);
      }
    });
  CHECK(t.tool({"run", "pause", "disturbed"}).status == exit_status{0, {}});
  CHECK(t.tool({"run", "resume", "disturbed"}).status == exit_status{0, {}});
  CHECK(t.tool({"run", "resize", "disturbed", "2"}).status == exit_status{0, {}});
  CHECK(t.tool({"checkpoint", "now", "disturbed"}).status == exit_status{0, {}});
  const auto watched = t.tool({"watch", "disturbed"});
  CHECK(watched.status == exit_status{0, {}});
  CHECK(contains(watched.out, "completed after step " + steps));
  floods.clear();
  const auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{0, {}});
  CHECK(t.here.result("disturbed")["state_sha256"] == t.here.result("undisturbed")["state_sha256"]);
}

TEST_CASE("who watches sees the run's events, and its exit code") {
  control t;
  SUBCASE("as it ends") {
    auto driver = t.here.start(t.here.charlm("run", {"--workers", "2", "--steps", endless}));
    t.here.await_step(driver, "run", 10);
    auto lines = t.here.start(t.arguments({"watch", "run", "--storage", t.here.path("runs").string()}));
    auto objects = t.here.start(t.arguments({"watch", "run", "--json", "--storage", t.here.path("runs").string()}));
    scratch_runs::await(driver, [&] { return contains(lines.out(), "running") && contains(objects.out(), "running"); });
    REQUIRE(!t.here.workers().empty());
    send_signal(t.here.worker_of_rank(1), SIGKILL);
    scratch_runs::await(driver, [&] { return contains(lines.out(), "failure of rank 1"); });
    CHECK(t.tool({"stop", "run"}).status == exit_status{0, {}});
    CHECK(lines.wait() == exit_status{0, {}});
    CHECK(contains(lines.out(), "stopped after step"));
    CHECK(objects.wait() == exit_status{0, {}});
    auto text = std::istringstream{objects.out()};
    auto last = json{};
    auto events = std::vector<std::string>{};
    for (std::string line; std::getline(text, line);) {
      last = json::parse(line, nullptr, false);
      REQUIRE(last.is_object());
      events.push_back(last["event"]);
    }
    CHECK(std::ranges::find(events, "failure") != events.end());
    CHECK(events.back() == "ended");
    CHECK(last["status"]["state"] == "stopped");
    CHECK(last["status"]["exit_code"] == 0);
    driver.wait();
  }
  SUBCASE("that has failed") {
    const auto failed = t.here.run({misbehaving_program(), "throw always", "2", t.here.path("runs").string(), "run"});
    REQUIRE(failed.status == exit_status{1, {}});
    const auto watched = t.tool({"watch", "run"});
    CHECK(watched.status == exit_status{1, {}});
    CHECK(contains(watched.out, "the gradient is on holiday"));
    CHECK(t.tool({"status", "run"}).status == exit_status{1, {}});
    CHECK(t.tool({"stop", "run"}).status == exit_status{1, {}});
  }
  SUBCASE("by hand, and Ctrl-C leaves the run alone") {
    auto driver = t.here.start(t.here.charlm("run", {"--workers", "2", "--steps", endless}));
    t.here.await_step(driver, "run", 10);
    auto watching = t.here.start(t.arguments({"watch", "run", "--storage", t.here.path("runs").string()}));
    scratch_runs::await(driver, [&] { return contains(watching.out(), "running"); });
    watching.signal_group(SIGINT);
    CHECK(watching.wait() == exit_status{{}, SIGINT});
    t.here.await_step(driver, "run", t.here.last_step("run"));
    // At once.
    CHECK(t.tool({"stop", "run", "--now"}).status == exit_status{0, {}});
    driver.wait();
  }
}

TEST_CASE("a run whose time is over takes a checkpoint, ends with 75, and goes on from there") {
  control t;
  auto driver = t.here.start(t.here.charlm("run", {"--workers", "2", "--steps", endless, "--time-limit", "1s"}));
  const auto status = driver.wait();
  INFO(driver.err());
  CHECK(status == exit_status{75, {}});
  const auto result = t.here.result("run");
  CHECK(result["status"] == "stopped");
  CHECK(result["error"]["code"] == "timed_out");
  CHECK(contains(result["error"]["message"], "run.time_limit, 1 s"));
  CHECK(stored_state(result["latest_checkpoint"].get<std::string>()) == result["state_sha256"]);
  CHECK(t.tool({"watch", "run"}).status == exit_status{75, {}});
  const auto steps = result["steps"].get<std::uint64_t>() + 5;
  const auto more = t.here.run(t.here.charlm("run", {"--steps", std::to_string(steps), "--time-limit", "1h"}));
  INFO(more.err);
  CHECK(more.status == exit_status{0, {}});
  CHECK(t.here.result("run")["steps"] == steps);
  CHECK(t.here.result("run")["resumed_from_step"] == steps - 5);
  CHECK(t.here.run(t.here.charlm("run", {"--time-limit", "soon"})).status == exit_status{2, {}});
}

TEST_CASE("a run without its driver is told apart, and another driver that takes it over listens again") {
  control t;
  const auto node = t.here.start_node();
  const auto arguments = t.here.charlm("run", {"--workers", "2", "--steps", endless, "--nodes", node.address});
  auto first = t.here.start(arguments);
  t.here.await_step(first, "run", 20);
  const auto workers = t.here.workers();
  first.signal(SIGKILL);
  first.wait();
  const auto lost = t.tool({"status", "run"});
  CHECK(lost.status == exit_status{1, {}});
  CHECK(contains(lost.out, "driver lost"));
  CHECK(contains(lost.out, "start the same command again"));
  const auto nobody = t.tool({"stop", "run"});
  CHECK(nobody.status == exit_status{2, {}});
  CHECK(contains(nobody.err, "start the same command again"));
  auto second = t.here.start(arguments);
  t.await_state(second, "run", "running");
  CHECK(t.status("run")["driver"]["pid"] == second.pid());
  CHECK(t.here.workers() == workers);
  CHECK(t.status("run")["workers"].size() == 2);
  CHECK(t.tool({"run", "pause", "run"}).status == exit_status{0, {}});
  CHECK(t.tool({"stop", "run"}).status == exit_status{0, {}});
  CHECK(second.wait() == exit_status{0, {}});
}

TEST_CASE("the tool watches and stops runs of another host over ssh, which passes odd words and exit codes on") {
  control c;
  // What ssh does: it hands one text to a shell there, in another directory.
  std::filesystem::create_directories(c.here.path("home"));
  write_file(c.here.path("ssh"), "#!/bin/sh\n[ \"$1\" != nobody@nowhere ] || exit 255\nshift\ncd " +
                                     c.here.path("home").string() +
                                     "\nPATH=" + std::filesystem::path{troupe_program()}.parent_path().string() +
                                     ":$PATH exec sh -c \"$*\"\n");
  std::filesystem::permissions(c.here.path("ssh"), std::filesystem::perms::owner_all);
  const auto there = [&](std::vector<std::string> words, const std::string& host = "user@other") {
    words.insert(words.end(), {"--host", host});
    return c.here.run(c.arguments(std::move(words)), {{"TROUPE_SSH", c.here.path("ssh").string()}});
  };
  const auto storage = c.here.path("it's $HOME").string();
  const auto name = std::string{"run"};
  auto words = c.here.charlm(name, {"--steps", endless});
  *(std::ranges::find(words, "--storage") + 1) = storage;
  auto driver = c.here.start(std::move(words));
  scratch_runs::await(driver,
                      [&] { return std::filesystem::exists(std::filesystem::path{storage} / name / "metrics.jsonl"); });
  auto ran = there({"status", name, "--storage", storage, "--json"});
  INFO(ran.err);
  CHECK(json::parse(ran.out)["name"] == name);
  CHECK(contains(there({"runs", storage}).out, name));
  ran = there({"stop", name, "--storage", storage});
  INFO(ran.err);
  CHECK(ran.status == exit_status{0, {}});
  CHECK(driver.wait() == exit_status{0, {}});
  CHECK(there({"status", "none", "--storage", storage}).status == exit_status{2, {}});
  ran = there({"status", name}, "nobody@nowhere");
  CHECK(ran.status == exit_status{2, {}});
  CHECK(contains(ran.err, "--host nobody@nowhere: it cannot be reached over ssh"));
}

TEST_CASE("what workers write is shown by rank, and followed until the run ends") {
  control t;
  auto driver = t.here.start({misbehaving_program(), "sleep", "2", t.here.path("runs").string(), "run"});
  t.here.await_step(driver, "run", 1);
  auto followed =
      t.here.start(t.arguments({"logs", "run", "--rank", "1", "-f", "--storage", t.here.path("runs").string()}));
  scratch_runs::await(driver, [&] { return contains(followed.out(), "and goes on"); });
  CHECK(contains(followed.out(), "[rank 1] rank 1 of 2 says hello"));
  CHECK_FALSE(contains(followed.out(), "[rank 0]"));
  CHECK(followed.running());
  CHECK(t.tool({"stop", "run", "--now"}).status == exit_status{0, {}});
  driver.wait();
  CHECK(followed.wait() == exit_status{0, {}});
  const auto all = t.tool({"logs", "run", "--lines", "1", "--json"});
  CHECK(all.status == exit_status{0, {}});
  auto text = std::istringstream{all.out};
  auto count = 0;
  for (std::string line; std::getline(text, line); ++count)
    CHECK(json::parse(line)["line"] == "and goes on");
  CHECK(count == 2);
  CHECK(t.tool({"logs", "run", "--rank", "7"}).status == exit_status{1, {}});
}

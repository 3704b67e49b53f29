#include "scratch_runs.hpp"
#include "submission.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

// Programs that nodes lack: drivers and `troupe submit` send them.

using namespace troupe::testing;
namespace fs = std::filesystem;

namespace {

class programs {
 public:
  scratch_runs here;

  programs() { fs::create_directory(here.path("empty")); }

  /// A node whose directory of programs is empty.
  [[nodiscard]] running_node start_node(const std::string& state, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--state", here.path(state).string(), "--program-dir", here.path("empty").string()});
    return here.start_node(std::move(more));
  }

  [[nodiscard]] outcome train(const std::string& name, const std::string& nodes, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--nodes", nodes, "--workers", "2", "--placement", "spread"});
    auto words = here.charlm(name, std::move(more));
    std::erase(words, "--quiet");
    return here.run(std::move(words));
  }

  outcome troupe(const std::string& cluster, std::vector<std::string> words) {
    words.insert(words.begin(), troupe_program());
    return here.run(std::move(words), {{"TROUPE_CLUSTER", cluster}});
  }

  /// Submits a small charlm run, whose program is named by its path.
  outcome submit(const std::string& cluster, const std::string& name, const std::vector<std::string>& options,
                 std::vector<std::string> more) {
    auto words = submission(here, name, options, std::move(more));
    for (auto& each : words)
      if (each == "charlm")
        each = charlm_program();
    return troupe(cluster, std::move(words));
  }

  [[nodiscard]] nlohmann::json status(const std::string& cluster, const std::string& name) {
    const auto said = nlohmann::json::parse(troupe(cluster, {"status", name, "--json"}).out, nullptr, false);
    return said.is_object() ? said : nlohmann::json::object();
  }

  [[nodiscard]] std::uint64_t step(const std::string& cluster, const std::string& name) {
    return status(cluster, name).value("step", std::uint64_t{0});
  }

  /// The programs that a node has taken, or that came with its jobs.
  [[nodiscard]] std::vector<fs::path> files_in(const std::string& state) const {
    std::vector<fs::path> result;
    auto code = std::error_code{};
    for (const auto& each : fs::recursive_directory_iterator{here.path(state), code})
      if (each.is_regular_file() && each.path().filename() == fs::path{charlm_program()}.filename())
        result.push_back(each.path());
    return result;
  }

  [[nodiscard]] std::string undisturbed(std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--workers", "1"});
    REQUIRE(here.run(here.charlm("alone", std::move(more))).status == exit_status{0, {}});
    return here.result("alone")["state_sha256"];
  }
};

const auto was_sent = std::string{"was sent to node"};

} // namespace

TEST_CASE_FIXTURE(programs, "nodes that lack a program take it once from its driver, and train to the same bits") {
  const auto first = start_node("first", {"--accept-programs"});
  const auto second = start_node("second", {"--accept-programs", "1GiB"});
  const auto nodes = first.address + "," + second.address;
  const auto sent = train("sent", nodes);
  INFO(sent.err);
  REQUIRE(sent.status == exit_status{0, {}});
  for (const auto* node : {&first, &second})
    CHECK(contains(sent.err, was_sent + " " + node->address));
  CHECK(here.result("sent")["state_sha256"] == undisturbed());

  const auto again = train("again", nodes);
  REQUIRE(again.status == exit_status{0, {}});
  CHECK_FALSE(contains(again.err, was_sent));

  // A damaged one is sent again.
  const auto taken = files_in("first");
  REQUIRE(taken.size() == 1);
  fs::resize_file(taken[0], fs::file_size(taken[0]) / 2);
  const auto mended = train("mended", nodes);
  INFO(mended.err);
  REQUIRE(mended.status == exit_status{0, {}});
  CHECK(contains(mended.err, was_sent + " " + first.address));
  CHECK_FALSE(contains(mended.err, was_sent + " " + second.address));
  CHECK(here.result("mended")["state_sha256"] == here.result("sent")["state_sha256"]);

  // So is another build of the same name, which takes its place beside it.
  const auto path = here.make_changed_charlm();
  auto words = here.charlm("changed", {"--nodes", nodes, "--workers", "2", "--placement", "spread"});
  words.front() = path;
  REQUIRE(here.run(words).status == exit_status{0, {}});
  CHECK(files_in("first").size() == 2);
}

TEST_CASE_FIXTURE(programs, "nodes that lack a program and take none are all named before anything starts, with what "
                            "would help") {
  const auto first = start_node("first");
  const auto second = start_node("second");
  const auto refused = train("refused", first.address + "," + second.address);
  INFO(refused.err);
  CHECK(refused.status == exit_status{1, {}});
  CHECK(contains(refused.err, "node " + first.address + ": "));
  CHECK(contains(refused.err, "node " + second.address + ": "));
  CHECK(contains(refused.err, "--accept-programs"));
  CHECK(here.workers_vanish());
  CHECK(files_in("first").empty());

  const auto one = here.run(here.charlm("one", {"--nodes", first.address + "," + second.address, "--workers", "1"}));
  INFO(one.err);
  CHECK(one.status == exit_status{1, {}});
  CHECK(contains(one.err, "--accept-programs"));

  const auto small = start_node("small", {"--accept-programs", "1MB"});
  const auto too_large = train("too-large", small.address);
  INFO(too_large.err);
  CHECK(too_large.status == exit_status{1, {}});
  CHECK(contains(too_large.err, "this node takes programs of 1048576 at most"));
  CHECK(files_in("small").empty());
}

TEST_CASE_FIXTURE(programs, "a cluster's members that have a program take the workers of those that lack it") {
  const auto lacks = start_node("lacks");
  const auto has = here.start_node({"--join", lacks.address, "--state", here.path("has").string()});
  const auto trained = here.run(here.charlm("run", {"--cluster", lacks.address, "--workers", "2"}));
  INFO(trained.err);
  CHECK(trained.status == exit_status{0, {}});
  const auto result = here.result("run");
  for (const auto& worker : result["workers"])
    CHECK(worker["node"] == has.address);
  CHECK(result["state_sha256"] == undisturbed());
}

TEST_CASE_FIXTURE(programs, "the libraries that a host lacks are named before a worker starts there") {
  auto code = read_file(charlm_program());
  const auto name = code.find("libcrypto.so.");
  REQUIRE(name != std::string::npos);
  code.replace(name, 9, "libabsent");
  const auto path = here.path("empty") / fs::path{charlm_program()}.filename();
  write_file(path, code);
  fs::permissions(path, fs::perms::owner_all);
  const auto node = start_node("state");
  const auto refused = train("refused", node.address);
  INFO(refused.err);
  CHECK(refused.status == exit_status{1, {}});
  CHECK(contains(refused.err, "lacks shared libraries of " + path.string() + ": libabsent.so."));
  CHECK(contains(refused.err, "install the packages that contain them"));
}

TEST_CASE_FIXTURE(programs, "who does not know who connects takes no programs") {
  const auto refused = here.run({caf_node_program(), "--insecure", "--accept-programs"});
  CHECK(refused.status == exit_status{1, {}});
  CHECK(contains(refused.err, "leave --accept-programs out"));
}

TEST_CASE_FIXTURE(programs, "a driver that ends while it sends its program keeps no other from sending it") {
  // One that stops at once takes a signal at any point of it.
  const auto node = start_node("state", {"--accept-programs"});
  for (auto attempt = 0; attempt < 3; ++attempt) {
    auto driver = here.start(here.charlm("stopped", {"--cluster", node.address, "--steps", "1000000"}));
    here.await(driver, [&] { return fs::exists(here.path("state") / ".programs"); });
    driver.signal(attempt == 0 ? SIGINT : SIGKILL);
    driver.wait();
    for (const auto& each : files_in("state"))
      fs::remove_all(each.parent_path());
  }
  const auto after = train("after", node.address);
  INFO(after.err);
  CHECK(after.status == exit_status{0, {}});
  CHECK(here.result("after")["state_sha256"] == undisturbed());
}

TEST_CASE_FIXTURE(programs,
                  "a job's program is sent with it, and stays with it when the node drops it, until it ends") {
  auto node = start_node("state", {"--accept-programs"});
  const auto submitted = submit(node.address, "night", {}, {"--steps", "1000000", "--workers", "2"});
  INFO(submitted.out << submitted.err);
  REQUIRE(submitted.status == exit_status{0, {}});
  CHECK(contains(submitted.err, "sent " + charlm_program() + " to the node " + node.address));
  REQUIRE(becomes_true([&] { return step(node.address, "night") > 5; }));
  const auto kept = here.path("state") / "night" / "program" / fs::path{charlm_program()}.filename();
  CHECK(fs::exists(kept));

  fs::remove_all(here.path("state") / ".programs");
  node.process.signal(SIGKILL);
  node.process.wait();
  REQUIRE(here.workers_vanish());
  const auto again = start_node("state", {"--accept-programs", "--listen", node.address});
  REQUIRE(becomes_true([&] { return status(node.address, "night").value("state", std::string{}) == "running"; }));
  const auto reached = step(node.address, "night");
  REQUIRE(becomes_true([&] { return step(node.address, "night") > reached + 5; }));
  CHECK(troupe(node.address, {"stop", "night"}).status == exit_status{0, {}});
  CHECK(becomes_true([&] { return !fs::exists(kept); }));
  const auto result = nlohmann::json::parse(read_file(here.path("state") / "night" / "runs" / "night" / "result.json"));
  CHECK(result["state_sha256"] == undisturbed({"--steps", result["steps"].dump()}));
}

TEST_CASE_FIXTURE(programs, "a job whose driver and workers are two programs takes both along") {
  const auto node = start_node("state", {"--accept-programs"});
  const auto driver = built("tests/bin/two_programs");
  const auto workers = built("tests/bin/hidden_state");
  const auto alone = troupe(node.address, {"submit", "--name", "alone", "--watch", "--", driver});
  INFO(alone.out << alone.err);
  CHECK(alone.status == exit_status{1, {}});
  CHECK(contains(alone.out + alone.err, "hidden_state"));
  const auto twice = troupe(node.address, {"submit", "--with", workers, "--with", workers, "--", driver});
  CHECK(twice.status == exit_status{2, {}});
  CHECK(contains(twice.err, "two files with the name"));
  const auto both = troupe(node.address, {"submit", "--name", "both", "--watch", "--with", workers, "--", driver});
  INFO(both.out << both.err << read_file(here.path("state") / "both" / "driver.log"));
  REQUIRE(both.status == exit_status{0, {}});
  const auto runs = here.path("runs").string();
  REQUIRE(here.run({workers, "plain", "lives", "0", "1", "12", runs, "apart"}).status == exit_status{0, {}});
  const auto result = nlohmann::json::parse(read_file(here.path("state") / "both" / "runs" / "both" / "result.json"));
  CHECK(result["state_sha256"] == here.result("apart")["state_sha256"]);
}

TEST_CASE_FIXTURE(programs, "a node that keeps a job goes on with the program that was sent with it") {
  const std::vector<std::string> soon{"--accept-programs", "--take-over-after", "1"};
  auto first = start_node("first", soon);
  auto join = soon;
  join.insert(join.end(), {"--join", first.address});
  const auto second = start_node("second", join);
  const auto third = start_node("third", {"--join", first.address, "--cpus", "0"});
  const auto cluster = second.address;
  REQUIRE(becomes_true([&] { return nlohmann::json::parse(troupe(cluster, {"nodes", "--json"}).out).size() == 3; }));
  const auto submitted = submit(cluster, "night", {"--node", first.address, "--mirror", here.path("mirror").string()},
                                {"--steps", "1000000", "--workers", "1", "--cpus-per-worker", "1", "--checkpoint-every",
                                 "100", "--driver-grace", "1"});
  INFO(submitted.out << submitted.err);
  REQUIRE(submitted.status == exit_status{0, {}});
  CHECK(contains(submitted.err, "the node " + third.address + " does not keep the job: it lacks the program"));
  REQUIRE(becomes_true([&] { return fs::exists(here.path("mirror") / "night" / "checkpoints"); }));
  first.process.signal(SIGKILL);
  first.process.wait();
  REQUIRE(becomes_true(
      [&] {
        const auto now = nlohmann::json::parse(troupe(cluster, {"runs", "--json"}).out, nullptr, false);
        return now.is_object() && now["jobs"].size() == 1 && now["jobs"][0]["node"] == second.address &&
               now["jobs"][0]["state"] == "running";
      },
      3 * hang_limit));
  const auto reached = step(cluster, "night");
  REQUIRE(becomes_true([&] { return step(cluster, "night") > reached + 50; }));
  CHECK(troupe(cluster, {"stop", "night"}).status == exit_status{0, {}});
}

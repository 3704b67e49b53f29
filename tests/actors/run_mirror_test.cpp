#include "trainer/run_mirror.hpp"

#include "scratch.hpp"

#include <processes.hpp>

#include <troupe/serialization/checkpoint/directory.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

/// What a fake mirror has and does. Shared with the mirror's thread.
struct fake_mirror {
  std::mutex mutex;
  std::condition_variable_any changed;
  std::vector<step_id> complete;
  std::vector<std::string> files;
  /// The content of owner.json, if there is one.
  std::optional<std::string> owner;
  /// The content of logs.
  std::map<std::string, std::string> logs;
  /// Files can be read.
  bool answers = true;
  /// While it is closed, uploads wait until they are given up.
  bool is_closed = false;
  int waiting = 0;
  bool is_full = false;

  void set(bool closed) {
    {
      auto lock = std::lock_guard{mutex};
      is_closed = closed;
    }
    changed.notify_all();
  }
  void await_upload() {
    auto lock = std::unique_lock{mutex};
    changed.wait(lock, [this] { return waiting > 0; });
  }
};

class fake_storage : public mirror_storage {
 public:
  explicit fake_storage(fake_mirror& at) : at_(at) {}

  const std::string& place() const noexcept override { return place_; }
  expected<mirror_content> list(const std::stop_token&) override {
    auto lock = std::lock_guard{at_.mutex};
    return mirror_content{at_.complete, {}};
  }
  expected<void> upload(const fs::path& checkpoint, const std::stop_token& stop) override {
    auto lock = std::unique_lock{at_.mutex};
    ++at_.waiting;
    at_.changed.notify_all();
    const auto opened = at_.changed.wait(lock, stop, [this] { return !at_.is_closed; });
    --at_.waiting;
    if (!opened)
      return fail(errc::aborted, "given up");
    if (at_.is_full)
      return fail(errc::io_error, "no space");
    at_.complete.push_back(*serialization::parse_checkpoint_name(checkpoint.filename().string()));
    std::ranges::sort(at_.complete);
    return {};
  }
  expected<void> remove(step_id step, const std::stop_token&) override {
    auto lock = std::lock_guard{at_.mutex};
    std::erase(at_.complete, step);
    return {};
  }
  expected<void> upload_files(const fs::path& root, const std::vector<std::string>& names,
                              const std::stop_token&) override {
    auto lock = std::lock_guard{at_.mutex};
    if (names.front() == "owner.json")
      at_.owner = serialization::read_file(root / names.front());
    else
      at_.files = names;
    for (const auto& name : names)
      if (name.find(".jsonl") != std::string::npos && fs::exists(root / name))
        at_.logs[name] = serialization::read_file(root / name);
    return {};
  }
  expected<void> fetch(step_id, const fs::path&, const std::stop_token&) override { return {}; }
  expected<void> fetch_file(const std::string& name, const fs::path& to, const std::stop_token&) override {
    auto lock = std::lock_guard{at_.mutex};
    if (!at_.answers)
      return fail(errc::io_error, "no answer");
    const auto log = at_.logs.find(name);
    if (log == at_.logs.end() && (name != "owner.json" || !at_.owner))
      return fail(errc::not_found, name);
    serialization::overwrite_file(to, log == at_.logs.end() ? *at_.owner : log->second);
    return {};
  }
  expected<std::string> move_aside(const std::stop_token&) override { return std::string{}; }

 private:
  fake_mirror& at_;
  std::string place_ = "fake";
};

/// A run's directory, whose mirror is a fake.
struct mirrored_directory {
  explicit mirrored_directory(const std::string& token = "a",
                              std::shared_ptr<fake_mirror> place = std::make_shared<fake_mirror>())
      : shared(std::move(place)) {
    mirror.emplace(run_mirror::settings{"fake",
                                        [this] { return std::make_unique<fake_storage>(at); },
                                        scratch.path(),
                                        {.num_to_keep = 2},
                                        holds,
                                        [this](severity how, std::string text) {
                                          auto lock = std::lock_guard{told_mutex};
                                          told.emplace_back(how, std::move(text));
                                        },
                                        {"a run", 0, token, "host-" + token, 7, "today"},
                                        {10}});
  }

  void save(std::uint64_t step) {
    const auto directory = scratch.path() / "checkpoints" / serialization::checkpoint_name({step});
    fs::create_directories(directory);
    serialization::overwrite_file(directory / serialization::manifest_file_name, "a manifest");
    mirror->on_saved({step});
  }
  std::size_t warnings() {
    auto lock = std::lock_guard{told_mutex};
    return static_cast<std::size_t>(
        std::ranges::count_if(told, [](const auto& each) { return each.first == severity::warning; }));
  }

  std::optional<mirror_owner> owner() {
    auto lock = std::lock_guard{at.mutex};
    return at.owner ? parse_mirror_owner(*at.owner) : std::nullopt;
  }

  std::shared_ptr<fake_mirror> shared;
  fake_mirror& at = *shared;
  serialization::scratch_directory scratch;
  std::shared_ptr<checkpoint_holds> holds = std::make_shared<checkpoint_holds>();
  std::mutex told_mutex;
  std::vector<std::pair<severity, std::string>> told;
  std::optional<run_mirror> mirror;
};

using steps = std::vector<std::uint64_t>;

} // namespace

TEST_CASE("a run that ends waits until its mirror has the last checkpoint and the run's files") {
  mirrored_directory here;
  for (const std::uint64_t step : {10, 20, 30})
    here.save(step);
  here.mirror->finish(1h, {});
  const auto summary = here.mirror->summary();
  CHECK(summary.reason.code == errc::none);
  CHECK(summary.checkpoints.back() == 30);
  CHECK(summary.checkpoints.size() <= 2);
  CHECK_FALSE(here.at.files.empty());
  const auto events = here.mirror->take_events();
  REQUIRE_FALSE(events.empty());
  CHECK(events.back().what["event"] == "mirrored");
  CHECK(events.back().what["step"] == 30);
  CHECK(here.warnings() == 0);
}

TEST_CASE("a checkpoint is held while it is copied, and newer ones supersede those that wait") {
  mirrored_directory here;
  here.at.set(true);
  here.save(10);
  here.at.await_upload();
  CHECK(here.holds->held() == std::vector<step_id>{{10}});
  for (const std::uint64_t step : {20, 30, 40})
    here.save(step);
  here.at.set(false);
  here.mirror->finish(1h, {});
  CHECK(here.holds->held().empty());
  CHECK(here.mirror->summary().checkpoints == steps{10, 40});
  CHECK(here.mirror->summary().superseded == 2);
}

TEST_CASE("a mirror that does not answer is waited for up to the deadline, or until somebody is in a hurry") {
  mirrored_directory here;
  here.at.set(true);
  here.save(10);
  here.mirror->finish(1ms, {});
  CHECK(here.mirror->summary().reason.message.find("the checkpoint of step 10") != std::string::npos);
  auto hurry = std::stop_source{};
  auto somebody = std::jthread{[&] {
    here.at.await_upload();
    hurry.request_stop();
  }};
  here.mirror->finish(1h, hurry.get_token());
  CHECK(here.mirror->summary().reason.code == errc::timed_out);
  // What is under way is given up.
  here.mirror.reset();
  CHECK(here.at.complete.empty());
  CHECK(here.at.waiting == 0);
}

TEST_CASE("failures in a row are one warning, and say what the mirror lacks") {
  mirrored_directory here;
  here.at.is_full = true;
  here.save(10);
  CHECK(testing::becomes_true([&] { return here.warnings() > 0; }));
  // It is tried again at once.
  here.mirror->finish(1ms, {});
  CHECK(testing::becomes_true([&] { return here.mirror->summary().failed_attempts > 1; }));
  const auto summary = here.mirror->summary();
  CHECK(summary.reason == error{errc::io_error, "the checkpoint of step 10: no space"});
  CHECK(here.warnings() == 1);
  for (const auto& each : here.mirror->take_events())
    CHECK(each.what["event"] == "mirror_failed");
}

TEST_CASE("a checkpoint that has been removed before its turn is no failure") {
  mirrored_directory here;
  here.mirror->on_saved({10});
  here.mirror->finish(1h, {});
  CHECK(here.mirror->summary().reason.code == errc::none);
  CHECK(here.mirror->summary().failed_attempts == 0);
  CHECK(here.warnings() == 0);
}

TEST_CASE("a driver leaves its mirror to one that claims it later, says so once, and waits for it no more") {
  mirrored_directory first{"a"};
  for (const std::uint64_t step : {10, 20}) {
    first.save(step);
    first.mirror->finish(1h, {});
  }
  CHECK(first.owner() == mirror_owner{"a run", 1, "a", "host-a", 7, "today"});
  mirrored_directory second{"b", first.shared};
  second.save(30);
  second.mirror->finish(1h, {});
  CHECK(second.owner() == mirror_owner{"a run", 2, "b", "host-b", 7, "today"});
  CHECK(second.mirror->summary().checkpoints == steps{20, 30});
  std::ignore = first.mirror->take_events();
  for (const std::uint64_t step : {40, 50}) {
    first.save(step);
    first.mirror->on_records_changed();
    first.mirror->finish(1h, {});
  }
  CHECK(first.mirror->summary().reason ==
        error{errc::superseded,
              "what this driver saves: it is now that of the driver with process id 7 on host-b, since today"});
  CHECK(first.mirror->summary().failed_attempts == 0);
  CHECK(first.warnings() == 1);
  const auto events = first.mirror->take_events();
  REQUIRE(events.size() == 1);
  CHECK(events.front().what["event"] == "mirror_superseded");
  CHECK(events.front().what["by"] == nlohmann::json{{"host", "host-b"}, {"pid", 7}, {"since", "today"}});
  CHECK(second.at.complete == std::vector<step_id>{{20}, {30}});
  // The other goes on.
  second.save(60);
  second.mirror->finish(1h, {});
  CHECK(second.mirror->summary().reason.code == errc::none);
  CHECK(second.at.complete == std::vector<step_id>{{30}, {60}});
  CHECK(second.warnings() == 0);
}

TEST_CASE("an owner's record that is lost or damaged is written again") {
  mirrored_directory here;
  here.save(10);
  here.mirror->finish(1h, {});
  auto damage = std::optional<std::string>{};
  SUBCASE("lost") {}
  SUBCASE("damaged") {
    damage = R"({"claim": 7)";
  }
  SUBCASE("older") {
    damage = to_json({"a run", 0, "b", "host-b", 7, "yesterday"});
  }
  {
    auto lock = std::lock_guard{here.at.mutex};
    here.at.owner = damage;
  }
  here.save(20);
  here.mirror->finish(1h, {});
  CHECK(here.mirror->summary().checkpoints == steps{10, 20});
  CHECK(here.owner() == mirror_owner{"a run", 1, "a", "host-a", 7, "today"});
}

TEST_CASE("nothing is written at a mirror that does not say whose it is") {
  mirrored_directory here;
  {
    auto lock = std::lock_guard{here.at.mutex};
    here.at.answers = false;
  }
  here.save(10);
  here.mirror->finish(1ms, {});
  CHECK(testing::becomes_true([&] { return here.mirror->summary().failed_attempts > 1; }));
  CHECK(here.mirror->summary().reason.code == errc::io_error);
  {
    auto lock = std::lock_guard{here.at.mutex};
    CHECK(here.at.complete.empty());
    CHECK_FALSE(here.at.owner);
    here.at.answers = true;
  }
  here.mirror->finish(1h, {});
  CHECK(here.mirror->summary().checkpoints == steps{10});
  CHECK(here.owner());
}

TEST_CASE("a log at the mirror that tells more than the run's is kept beside it") {
  using logs = std::map<std::string, std::string>;
  mirrored_directory here;
  const auto is_written_again = std::string{"{\"step\":11}\n"};
  auto lock = std::unique_lock{here.at.mutex};
  here.at.logs = {{"events.jsonl", "a\nb\n"}, {"metrics.jsonl", "{\"step\":10}\n" + is_written_again}};
  const auto before = here.at.logs;
  serialization::overwrite_file(here.scratch.path() / "events.jsonl", "b\nc\na\n");
  serialization::overwrite_file(here.scratch.path() / "metrics.jsonl", "{\"step\":10}\n");
  auto wanted = logs{{"events.jsonl", "b\nc\na\n"}, {"metrics.jsonl", "{\"step\":10}\n"}};
  SUBCASE("they have all that counts") {}
  SUBCASE("events are missing") {
    serialization::overwrite_file(here.scratch.path() / "events.jsonl", "b\nc\n");
    wanted["events.jsonl"] = "b\nc\n";
    wanted["events.jsonl.1"] = before.at("events.jsonl");
  }
  SUBCASE("metrics are gone") {
    fs::remove(here.scratch.path() / "metrics.jsonl");
    wanted["metrics.jsonl"] = before.at("metrics.jsonl");
    wanted["metrics.jsonl.1"] = before.at("metrics.jsonl");
  }
  SUBCASE("metrics are missing, not for the first time") {
    here.at.logs["metrics.jsonl.1"] = "even more";
    serialization::overwrite_file(here.scratch.path() / "metrics.jsonl", "{\"step\":9}\n");
    wanted["metrics.jsonl"] = "{\"step\":9}\n";
    wanted["metrics.jsonl.1"] = "even more";
    wanted["metrics.jsonl.2"] = before.at("metrics.jsonl");
  }
  lock.unlock();
  here.save(20);
  here.mirror->finish(1h, {});
  // Once: from now on it is this driver's.
  here.mirror->on_records_changed();
  here.mirror->finish(1h, {});
  CHECK(here.at.logs == wanted);
  CHECK(here.warnings() == wanted.size() - before.size() - (wanted.contains("metrics.jsonl.2") ? 1 : 0));
  CHECK_FALSE(fs::exists(here.scratch.path() / ".mirrored-logs"));
}

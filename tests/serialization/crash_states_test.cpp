// Machine crashes at every operation of a store's life, with everything that may then be left of unsynced data.
// TROUPE_LONG_TESTS=1 tries several hundred thousand states, TROUPE_SEED=<number> different ones.
#include "checkpoint_scenario.hpp"
#include "interposed_files.hpp"
#include "memory_disk.hpp"

#include <troupe/serialization/files/durable_file.hpp>

#include <doctest/doctest.h>

#include <cstdlib>
#include <set>

using namespace troupe;
using namespace troupe::serialization;
namespace fs = std::filesystem;

namespace {

std::uint64_t seed_of_tests() {
  const auto* text = std::getenv("TROUPE_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

bool is_long() {
  return std::getenv("TROUPE_LONG_TESTS") != nullptr;
}

class random_source {
 public:
  explicit random_source(std::uint64_t seed) : state_(seed * 2 + 1) {}

  std::uint32_t below(std::uint32_t limit) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(((state_ >> 32) * limit) >> 32);
  }

 private:
  std::uint64_t state_;
};

fate random_fate(random_source& random) {
  auto what = static_cast<fate::kind>(random.below(4));
  auto plain = what == fate::kind::kept || what == fate::kind::lost;
  return {what, plain ? 0 : random.below(1u << 16)};
}

/// The possible fates of `unsynced` changes: all alike, each one different from the others, and `more` random ones.
std::set<std::vector<fate>> choose_fates(std::size_t unsynced, std::size_t more, random_source& random) {
  auto result = std::set<std::vector<fate>>{};
  const auto kept = std::vector<fate>(unsynced, fate{fate::kind::kept});
  const auto lost = std::vector<fate>(unsynced, fate{fate::kind::lost});
  result.insert(kept);
  result.insert(lost);
  for (std::size_t i = 0; i < unsynced; ++i) {
    auto except = [&](std::vector<fate> others, fate one) {
      others[i] = one;
      result.insert(std::move(others));
    };
    except(lost, {fate::kind::kept});
    except(kept, {fate::kind::lost});
    except(kept, {fate::kind::torn, random.below(1u << 16)});
    except(kept, {fate::kind::garbled, random.below(1u << 16)});
  }
  for (std::size_t i = 0; unsynced > 0 && i < more; ++i) {
    auto chosen = lost;
    for (auto& each : chosen)
      each = random_fate(random);
    result.insert(chosen);
  }
  return result;
}

/// Crashes the machine at every possible point, and checks what is left each time.
class crash_explorer {
 public:
  explicit crash_explorer(checkpoint_scenario::shape sizes, std::uint64_t seed) : shape_(sizes), random_(seed) {}

  using interpose = std::function<std::unique_ptr<file_system>(memory_disk&)>;
  using adjust = std::function<void(checkpoint_scenario&)>;

  /// Runs the scenario on the file system that `broken` puts in front of the disk.
  void explore(const interpose& broken = {}, const adjust& change = {}) {
    auto disk = memory_disk{};
    leave_directory_unsynced(disk);
    auto front = broken ? broken(disk) : nullptr;
    auto scenario = checkpoint_scenario{front ? *front : disk, shape_};
    if (change)
      change(scenario);
    disk.before_change = [&](const memory_disk& now) { crash(now, scenario.promises(), more_states_, 1); };
    auto done = scenario.run();
    if (!done && !flaw_)
      flaw_ = "the scenario ended: " + done.error().message;
    crash(disk, scenario.promises(), more_states_, 1);
  }

  [[nodiscard]] std::size_t states() const noexcept { return states_; }
  [[nodiscard]] const std::optional<std::string>& flaw() const noexcept { return flaw_; }

 private:
  /// The state left by a process that was killed right after creating the checkpoints directory.
  static void leave_directory_unsynced(memory_disk& disk) {
    const auto& path = checkpoint_scenario::directory();
    value_or_throw(create_directories_durably(path.parent_path(), disk));
    value_or_throw(disk.make_directory(path));
  }

  void crash(const memory_disk& now, const store_promises& promises, std::size_t more, int depth) {
    if (flaw_)
      return;
    for (const auto& fates : choose_fates(now.unsynced(), more, random_)) {
      ++states_;
      auto left = now.after_crash(fates);
      flaw_ = recover(*left, promises, depth);
      if (flaw_)
        return;
    }
  }

  /// Checks that the newest checkpoint is found, the crash's remains are removed, and the run resumes.
  std::optional<std::string> recover(memory_disk& disk, const store_promises& promises, int depth) {
    auto scenario = checkpoint_scenario{disk, shape_, promises};
    if (auto flaw = scenario.find_flaw())
      return flaw;
    if (depth > 0 && states_ % again_ == 0)
      disk.before_change = [&](const memory_disk& now) { crash(now, scenario.promises(), 0, depth - 1); };
    auto gone_on = scenario.go_on();
    disk.before_change = nullptr;
    if (!gone_on)
      return "the run does not go on: " + gone_on.error().message;
    auto entries = disk.list(checkpoint_scenario::directory());
    for (const auto& entry : *entries)
      if (!parse_checkpoint_name(entry.name))
        return entry.name + " was not removed";
    return flaw_ ? flaw_ : scenario.find_flaw();
  }

  checkpoint_scenario::shape shape_;
  std::size_t more_states_ = is_long() ? 200 : 2;
  /// After every so many crashes the machine crashes again while the run resumes.
  std::size_t again_ = is_long() ? 97 : 1009;
  random_source random_;
  std::size_t states_ = 0;
  std::optional<std::string> flaw_;
};

/// A file system that skips the operations named by `is_left_out`.
crash_explorer::interpose leaving_out(std::function<bool(operation, const fs::path&)> is_left_out) {
  return [=](memory_disk& disk) {
    return std::make_unique<interposed_files>(disk, [=](operation what, const fs::path& path) {
      return verdict{is_left_out(what, path) ? verdict::kind::left_out : verdict::kind::carried_out};
    });
  };
}

bool is_own_file(const fs::path& path) {
  return path.filename().string().starts_with("chunk-");
}

bool is_part(const fs::path& path) {
  return path.filename().string().starts_with("part-");
}

bool is_manifest(const fs::path& path) {
  return path.filename().string().find("manifest") != std::string::npos;
}

bool is_attempt(const fs::path& path) {
  return path.filename().string().ends_with(".tmp") && !is_manifest(path);
}

bool is_checkpoint(const fs::path& path) {
  return parse_checkpoint_name(path.filename().string()).has_value();
}

/// Syncs an attempt's files only after it has its final name.
std::unique_ptr<file_system> rename_before_sync(memory_disk& disk) {
  auto sync_all = [&disk](const fs::path& path) {
    for (const auto& entry : value_or_throw(disk.list(path)))
      std::ignore = (*disk.open(path / entry.name))->sync();
    std::ignore = disk.sync_directory(path);
  };
  return std::make_unique<interposed_files>(disk, [=](operation what, const fs::path& path) {
    if (what == operation::sync || (what == operation::sync_directory && is_attempt(path)))
      return verdict{verdict::kind::left_out};
    if (what == operation::rename && is_checkpoint(path))
      return verdict{.afterwards = [=] { sync_all(path); }};
    return verdict{};
  });
}

/// A device that loses one part of the third checkpoint, and reports success.
void lose_newest(memory_disk& disk) {
  disk.sync_is_a_lie = [](const fs::path& path) {
    return is_part(path) && path.string().find("step-00000030") != std::string::npos;
  };
}

} // namespace

TEST_CASE("whatever a crash of the machine leaves, the newest checkpoint is found and the run resumes") {
  auto seed = seed_of_tests();
  CAPTURE(seed);
  auto states = std::size_t{0};
  for (auto sizes : {checkpoint_scenario::shape{2, 4096, 2}, checkpoint_scenario::shape{1, 8192, 1},
                     checkpoint_scenario::shape{3, 4096, 1}, checkpoint_scenario::with_frozen_tensor()}) {
    auto explorer = crash_explorer{sizes, seed++};
    explorer.explore();
    CHECK_MESSAGE(!explorer.flaw(), explorer.flaw().value_or(""));
    states += explorer.states();
  }
  MESSAGE(states, " states");
  CHECK(states > (is_long() ? 100'000u : 3'000u));
}

TEST_CASE("a commit that leaves out or reorders one operation does not survive every crash") {
  struct mutant {
    std::string name;
    crash_explorer::interpose broken;
    crash_explorer::adjust change;
    checkpoint_scenario::shape sizes = {2, 4096, 1};
  };
  auto remove_oldest = [](checkpoint_scenario& scenario) {
    auto oldest = *scenario.promises().kept.begin();
    return scenario.remove(oldest);
  };
  auto linked = std::set<fs::path>{};
  const auto mutants = std::vector<mutant>{
      {"no sync of a part",
       leaving_out(
           [](auto what, const auto& path) { return what == operation::sync && path.filename() == "part-0001.bin"; }),
       {}},
      {"no sync of the manifest",
       leaving_out([](auto what, const auto& path) { return what == operation::sync && is_manifest(path); }),
       {}},
      {"no sync of the temporary directory",
       leaving_out([](auto what, const auto& path) { return what == operation::sync_directory && is_attempt(path); }),
       {}},
      {"no sync of the directory above the rename",
       leaving_out([](auto what, const auto& path) {
         return what == operation::sync_directory && path.filename() == "checkpoints";
       }),
       {}},
      {"no sync of the directories above",
       leaving_out([](auto what, const auto& path) {
         return what == operation::sync_directory && path.filename() != "checkpoints" && !is_attempt(path);
       }),
       {}},
      {"rename before sync", rename_before_sync, {}},
      {"the oldest goes before the newest is committed",
       {},
       [=](checkpoint_scenario& scenario) {
         scenario.retain_instead = [](auto&) { return expected<void>{}; };
         scenario.before_commit = [=](checkpoint_scenario& now, step_id) {
           return now.promises().kept.empty() ? expected<void>{} : remove_oldest(now);
         };
       }},
      {"files go before the name",
       [](memory_disk& disk) {
         return std::make_unique<interposed_files>(disk, [&disk](operation what, const fs::path& path) {
           if (what != operation::rename || !path.filename().string().ends_with(".removed"))
             return verdict{};
           auto name = path.filename().string();
           auto victim = path.parent_path() / name.substr(1, name.size() - 1 - std::string{".removed"}.size());
           for (const auto& entry : value_or_throw(disk.list(victim)))
             std::ignore = disk.remove(victim / entry.name);
           return verdict{};
         });
       },
       {}},
      {"no sync of a chunk's own file",
       leaving_out([](auto what, const auto& path) { return what == operation::sync && is_own_file(path); }),
       {},
       checkpoint_scenario::with_frozen_tensor()},
      {"no sync of the directory that gets links",
       leaving_out([&linked](auto what, const auto& path) {
         if (what == operation::link)
           linked.insert(path.parent_path());
         return what == operation::sync_directory && linked.contains(path);
       }),
       {},
       checkpoint_scenario::with_frozen_tensor()},
  };
  for (const auto& mutant : mutants) {
    CAPTURE(mutant.name);
    auto explorer = crash_explorer{mutant.sizes, seed_of_tests()};
    explorer.explore(mutant.broken, mutant.change);
    CHECK(explorer.flaw());
  }
}

TEST_CASE("a device that loses synced data costs the newest checkpoint, and no other") {
  auto disk = memory_disk{};
  lose_newest(disk);
  auto scenario = checkpoint_scenario{disk, {2, 4096, 1}};
  auto done = scenario.run();
  REQUIRE_FALSE(done);
  CHECK(done.error().code == errc::damaged);
  CHECK(done.error().message.find("no checkpoint is removed") != std::string::npos);
  auto left = disk.after_crash({});
  auto latest = open_latest(checkpoint_scenario::directory(), *left);
  REQUIRE(latest);
  CHECK(latest->found.content().step == step_id{20});
  CHECK(latest->passed_over.size() == 1);
}

TEST_CASE("a removal that trusts the page cache, or checks nothing, loses the last valid checkpoint on such a device") {
  auto is_lost = [](const crash_explorer::interpose& broken, const crash_explorer::adjust& change) {
    auto disk = memory_disk{};
    lose_newest(disk);
    auto front = broken ? broken(disk) : nullptr;
    auto scenario = checkpoint_scenario{front ? *front : disk, {2, 4096, 1}};
    change(scenario);
    std::ignore = scenario.take({20});
    std::ignore = scenario.take({30});
    std::ignore = scenario.retain();
    auto left = disk.after_crash(std::vector<fate>(disk.unsynced()));
    return !open_latest(checkpoint_scenario::directory(), *left);
  };
  CHECK_FALSE(is_lost({}, [](auto&) {}));
  CHECK(is_lost(leaving_out([](auto what, const auto&) { return what == operation::drop_cached; }), [](auto&) {}));
  CHECK(is_lost({}, [](checkpoint_scenario& scenario) {
    scenario.retain_instead = [](checkpoint_scenario& now) { return now.remove({20}); };
  }));
}

TEST_CASE("a file damaged on the device is not linked again, unless the page cache is trusted") {
  // The file is created with the second checkpoint, and would be linked by the third.
  auto is_lost = [](const crash_explorer::interpose& broken) {
    auto disk = memory_disk{};
    auto front = broken ? broken(disk) : nullptr;
    auto scenario = checkpoint_scenario{front ? *front : disk, checkpoint_scenario::with_frozen_tensor()};
    value_or_throw(create_directories_durably(checkpoint_scenario::directory(), disk));
    value_or_throw(scenario.take({10}));
    value_or_throw(scenario.take({20}));
    disk.spoil(checkpoint_scenario::directory() / checkpoint_name({20}) / chunk_file_name(2, 0), 100);
    value_or_throw(scenario.take({30}));
    auto left = disk.after_crash(std::vector<fate>(disk.unsynced()));
    auto latest = open_latest(checkpoint_scenario::directory(), *left);
    return !latest || latest->found.content().step != step_id{30};
  };
  CHECK_FALSE(is_lost({}));
  CHECK(is_lost(leaving_out([](auto what, const auto&) { return what == operation::drop_cached; })));
}

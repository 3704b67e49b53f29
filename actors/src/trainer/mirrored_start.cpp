#include "trainer/mirrored_start.hpp"

#include <troupe/config.hpp>
#include <troupe/mirror_place.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/durable_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::actors {

namespace fs = std::filesystem;

namespace {

/// Fetches the newest checkpoint after `after` that verifies. Returns its step; nothing if there is none.
expected<std::optional<step_id>> fetch_newest(const run_directory& directory, std::optional<step_id> after,
                                              const start_sources& from) {
  TROUPE_TRY(auto content, from.mirror->list(from.stop));
  for (const auto step : content.complete | std::views::reverse) {
    if (after && step <= *after)
      break;
    from.tell(severity::note,
              fmt::format("fetches the checkpoint of step {} from the mirror {}", step, from.mirror->place()));
    auto fetched = from.mirror->fetch(step, directory.checkpoints(), from.stop);
    if (fetched)
      return step;
    // An older one is better than none.
    if (fetched.error().code != errc::damaged && fetched.error().code != errc::already_exists)
      return fail(std::move(fetched.error()));
    from.tell(severity::warning,
              fmt::format("the checkpoint of step {} at the mirror cannot be used: {}", step, fetched.error().message));
  }
  return std::nullopt;
}

/// The whole lines of a file; none if it cannot be read.
std::vector<std::string> lines_of(const fs::path& path) {
  std::vector<std::string> result;
  auto in = std::ifstream{path};
  for (std::string line; std::getline(in, line) && !in.eof();)
    result.push_back(std::move(line));
  return result;
}

/// The number behind the last `"step":` of a log; 0 if it has none.
std::uint64_t last_step_of(const fs::path& path) {
  constexpr std::string_view key = "\"step\":";
  std::uint64_t result = 0;
  auto in = std::ifstream{path};
  for (std::string line; std::getline(in, line);)
    if (const auto at = line.find(key); at != std::string::npos)
      result = std::strtoull(line.c_str() + at + key.size(), nullptr, 10);
  return result;
}

/// The time of an event: the text sorts as the time does.
std::string time_of(const std::string& line) {
  constexpr std::string_view key = "\"time\":\"";
  const auto at = line.find(key);
  return at == std::string::npos ? std::string{} : line.substr(at + key.size(), line.find('"', at + key.size()) - at);
}

/// The events of both files, each once, in the order of their times.
expected<void> merge_events(const fs::path& into, const fs::path& from) {
  auto all = lines_of(from);
  const auto known = std::set<std::string>{all.begin(), all.end()};
  for (auto& each : lines_of(into))
    if (!known.contains(each))
      all.push_back(std::move(each));
  std::ranges::stable_sort(all, {}, time_of);
  return serialization::write_file_durably(into, [&](const serialization::text_sink& sink) -> expected<void> {
    for (const auto& each : all)
      TROUPE_TRY(sink(each + "\n"));
    return {};
  });
}

/// One of the mirror's files that tell of the steps before its newest checkpoint. Another driver may have trained on
/// another host since this directory was written: its log goes on where the one here ends.
expected<void> fetch_record(const std::string& name, const run_directory& directory, const start_sources& from) {
  const auto here = directory.root() / name;
  auto ignored = std::error_code{};
  if (!fs::exists(here, ignored))
    return from.mirror->fetch_file(name, here, from.stop);
  if (from.is_restart || !name.ends_with(".jsonl"))
    return {};
  const auto there = directory.root() / ("." + name + ".mirrored");
  auto taken = from.mirror->fetch_file(name, there, from.stop);
  if (taken && name == "events.jsonl")
    taken = merge_events(here, there);
  else if (taken && last_step_of(there) > last_step_of(here))
    taken = serialization::local_files().rename(there, here, serialization::if_taken::replace);
  fs::remove(there, ignored);
  return taken;
}

/// Those of the run's files that tell of the steps before the checkpoint that was fetched.
void fetch_records(const run_directory& directory, const start_sources& from) {
  for (const auto* name : {"run.json", "metrics.jsonl", "events.jsonl"}) {
    auto fetched = fetch_record(name, directory, from);
    if (!fetched && fetched.error().code != errc::not_found)
      from.tell(severity::warning,
                fmt::format("the run goes on without its earlier {}: {}", name, fetched.error().message));
  }
}

struct fetched_other {
  fs::path directory;
  /// Where it comes from.
  std::string place;
};

/// Fetches a checkpoint of another run into `loaded/`, unless it is there.
expected<fetched_other> fetch_other(const run_directory& directory, const std::string& place,
                                    const start_sources& from) {
  auto wanted = parse_mirrored_run(place);
  TROUPE_TRY(auto mirror, from.open(wanted.place));
  if (!wanted.step) {
    TROUPE_TRY(const auto content, mirror->list(from.stop));
    if (content.complete.empty())
      return fail(errc::not_found, fmt::format("there is no checkpoint at {}: name the place of a run or of one of its "
                                               "checkpoints, as in rclone:s3:bucket/runs/NAME",
                                               place));
    wanted.step = content.complete.back();
  }
  const auto loaded = directory.root() / "loaded";
  TROUPE_TRY(serialization::create_directories_durably(loaded));
  const auto name = serialization::checkpoint_name(*wanted.step);
  auto result = fetched_other{loaded / name, join_mirror_place(wanted.place, "checkpoints/" + name)};
  const auto there = serialization::checkpoint::open(result.directory);
  if (there && there->verify())
    return result;
  from.tell(severity::note, fmt::format("fetches {}", result.place));
  TROUPE_TRY(mirror->fetch(*wanted.step, loaded, from.stop));
  return result;
}

} // namespace

expected<void> prepare_mirror(mirror_storage& mirror, const run_directory& directory, const run_config& run,
                              const start_sources& from) {
  auto ignored = std::error_code{};
  if (!is_remote_place(mirror.place()) && fs::equivalent(directory.root(), mirror.place(), ignored))
    return fail(errc::invalid_argument,
                fmt::format("checkpoint.mirror.to leads to the run's own directory {}: name a directory on another "
                            "device",
                            directory.root().string()));
  if (run.resume == resume_mode::restart) {
    TROUPE_TRY(const auto aside, mirror.move_aside(from.stop));
    if (!aside.empty())
      from.tell(severity::note, fmt::format("the earlier mirror {} is now {}", mirror.place(), aside));
  }
  if (run.resume == resume_mode::never) {
    TROUPE_TRY(const auto content, mirror.list(from.stop));
    if (!content.complete.empty() || !content.incomplete.empty())
      return fail(errc::already_exists,
                  fmt::format("run.resume is resume_mode::never, and the mirror {} has checkpoints of a run of this "
                              "name: resume it (--resume auto), or choose another name (run.name, --name)",
                              mirror.place()));
  }
  return {};
}

expected<starting_state> find_start(const run_directory& directory, trainer_config config, const run_identity& identity,
                                    const start_sources& from) {
  auto to_fetch = std::string{};
  if (is_remote_place(config.load_checkpoint.string()))
    to_fetch = std::exchange(config.load_checkpoint, {}).string();
  auto found = find_starting_state(directory, config, identity, abandoned_parts::remove);
  const auto has_own = found && found->is_own();
  const auto has_none = found || found.error().code == errc::not_found || found.error().code == errc::damaged;
  if (from.mirror != nullptr && has_none) {
    auto fetched = fetch_newest(directory, has_own ? std::optional{found->step} : std::nullopt, from);
    if (!fetched && !has_own)
      return fail(fetched.error().code,
                  fmt::format("the run may have a checkpoint at its mirror, which cannot be read: {}; repair that, or "
                              "begin without a mirror (checkpoint.mirror, --mirror)",
                              fetched.error().message));
    if (!fetched)
      from.tell(severity::warning,
                fmt::format("the mirror {} cannot be read, so the run goes on from its directory: {}",
                            from.mirror->place(), fetched.error().message));
    else if (*fetched) {
      fetch_records(directory, from);
      found = find_starting_state(directory, config, identity, abandoned_parts::remove);
    }
  }
  if (to_fetch.empty() || !found || found->is_own())
    return found;
  TROUPE_TRY(auto other, fetch_other(directory, to_fetch, from));
  config.load_checkpoint = std::move(other.directory);
  found = find_starting_state(directory, config, identity, abandoned_parts::remove);
  if (found && !found->is_own())
    found->loaded_from = std::move(other.place);
  return found;
}

} // namespace troupe::actors

#include "trainer/mirrored_start.hpp"

#include <troupe/mirror_place.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/durable_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <ranges>
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

/// Those of the run's files that tell of the steps before the checkpoint, if the directory has none.
void fetch_records(const run_directory& directory, const start_sources& from) {
  for (const auto* name : {"run.json", "metrics.jsonl", "events.jsonl"}) {
    auto ignored = std::error_code{};
    if (fs::exists(directory.root() / name, ignored))
      continue;
    auto fetched = from.mirror->fetch_file(name, directory.root() / name, from.stop);
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

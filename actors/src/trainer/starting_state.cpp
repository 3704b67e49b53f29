#include "starting_state.hpp"

#include <troupe/actors/decisions/program_chain.hpp>
#include <troupe/config.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>

#include <filesystem>
#include <tuple>
#include <utility>

namespace troupe::actors {

namespace {

/// `directory` is a checkpoint's, or a run's, whose latest it means.
expected<serialization::checkpoint> open_any(const std::filesystem::path& directory) {
  auto ignored = std::error_code{};
  if (!std::filesystem::is_directory(directory / "checkpoints", ignored))
    return serialization::checkpoint::open(directory);
  TROUPE_TRY(auto latest, serialization::open_latest(directory / "checkpoints"));
  return std::move(latest.found);
}

} // namespace

bool starting_state::continues_steps() const noexcept {
  const auto* other = std::get_if<beginning::other>(&source);
  return is_own() || (other != nullptr && other->count == beginning::other::steps::go_on);
}

std::string starting_state::directory() const {
  if (const auto* own = std::get_if<beginning::own>(&source))
    return own->directory;
  const auto* other = std::get_if<beginning::other>(&source);
  return other == nullptr ? std::string{} : other->directory;
}

expected<starting_state> find_starting_state(const run_directory& directory, const trainer_config& config,
                                             const run_identity& identity, abandoned_parts abandoned) {
  if (abandoned == abandoned_parts::remove)
    std::ignore = serialization::remove_abandoned(directory.checkpoints());
  starting_state result;
  auto latest = serialization::open_latest(directory.checkpoints());
  if (latest) {
    const auto& content = latest->found.content();
    TROUPE_TRY(compare_with_checkpoint(identity, content, config.run.allow_changed));
    result.source = beginning::own{latest->found.directory().string()};
    result.step = content.step;
    result.programs = programs_of(content);
    result.resumed = plan_of(content);
    result.metrics = content.metrics;
    // The run's metrics say it more exactly.
    for (const auto& [name, value] : content.metrics)
      result.metrics_from[name] = content.step.value;
    result.is_finished = content.finishes_run;
    for (const auto& each : latest->passed_over) {
      auto text = each.text();
      if (each.why.code != errc::damaged) {
        auto aside = serialization::set_aside(each.directory);
        text += aside ? " (it is now " + aside->filename().string() + ")" : "; " + aside.error().message;
      }
      result.passed_over.push_back(std::move(text));
    }
    return result;
  }
  if (latest.error().code != errc::not_found)
    return fail(latest.error().code, latest.error().message +
                                         "; begin anew beside them with resume_mode::restart (--resume restart), or "
                                         "choose another name (run.name, --name)");
  if (config.run.resume == resume_mode::required)
    return fail(errc::not_found, "run.resume is resume_mode::required, but " + directory.checkpoints().string() +
                                     " holds no checkpoint: check run.name (--name) and run.storage_path (--storage), "
                                     "or begin with resume_mode::automatic (--resume auto)");
  if (config.load_checkpoint.empty())
    return result;
  TROUPE_TRY(auto other, open_any(config.load_checkpoint));
  TROUPE_TRY(other.verify());
  // A link, such as runs/latest, may lead elsewhere when the workers read it.
  auto code = std::error_code{};
  auto source = beginning::other{std::filesystem::canonical(other.directory(), code).string()};
  if (code)
    return fail(errc::io_error, "cannot find " + other.directory().string() + ": " + code.message());
  result.loaded_from = source.directory;
  if (config.load.keep_step) {
    source.count = beginning::other::steps::go_on;
    result.step = other.content().step;
    result.programs = programs_of(other.content());
  }
  result.source = std::move(source);
  return result;
}

} // namespace troupe::actors

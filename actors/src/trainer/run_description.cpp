#include "trainer/run_description.hpp"

#include <troupe/actors/decisions/program_chain.hpp>
#include <troupe/collectives/summation_tree.hpp>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

namespace troupe::actors {

namespace {

/// Keeps the checkpoint that the run began with, if a resumed run does not name it again.
void keep_origin(nlohmann::json& now, const nlohmann::json& before) {
  const auto replay = before.find("replay");
  if (!now["replay"]["load_checkpoint"].get<std::string>().empty() || replay == before.end())
    return;
  for (const auto* key : {"load_checkpoint", "load"})
    if (const auto found = replay->find(key); found != replay->end())
      now["replay"][key] = *found;
}

/// The first step from which all later ones were computed by this program with this configuration.
std::uint64_t first_step_of(const starting_state& state, const std::string& build_id,
                            const std::string& configuration) {
  const auto now = describe_program(build_id, configuration, {});
  auto result = state.step.value + 1;
  for (auto each = state.programs.rbegin(); each != state.programs.rend() && each->build_id == now.build_id &&
                                            each->configuration_digest == now.configuration_digest;
       ++each)
    result = each->first_step.value;
  return result;
}

/// What else `troupe replay` needs.
nlohmann::json describe_replay(const run_files_config& what, const starting_state& state) {
  const auto& config = what.config;
  auto code = std::error_code{};
  return {{"directory", std::filesystem::current_path(code).string()},
          {"arguments", config.arguments},
          {"steps", config.run.steps},
          {"exact", config.run.reduction == reduction_mode::exact},
          {"gpus", resources_of_worker(config.scaling).gpus},
          {"since_step", first_step_of(state, what.services.build_id, identity_of(what).configuration)},
          {"load_checkpoint", config.load_checkpoint.empty()
                                  ? std::string{}
                                  : std::filesystem::absolute(config.load_checkpoint, code).string()},
          {"load",
           {{"allow_missing", config.load.allow_missing},
            {"ignore_extra", config.load.ignore_extra},
            {"keep_step", config.load.keep_step},
            {"renames", config.load.renames}}}};
}

} // namespace

nlohmann::json described_in(const std::filesystem::path& run_directory) {
  auto in = std::ifstream{run_directory / "run.json"};
  return nlohmann::json::parse(in, nullptr, false);
}

void describe_job(nlohmann::json& run, const submitted_job& job) {
  if (!job.engine.empty())
    run["job"] = {{"engine", job.engine}, {"id", job.id}, {"submission", job.submission}, {"start", job.start}};
}

bool is_of_earlier_start(const nlohmann::json& described, const submitted_job& job) {
  const auto before = described.is_object() ? described.find("job") : described.end();
  if (job.submission.empty() || before == described.end() || !before->is_object())
    return false;
  const auto is = [&](const char* key, const std::string& text) {
    return before->value(key, nlohmann::json{}) == text;
  };
  return is("submission", job.submission) && (job.start.empty() || !is("start", job.start));
}

nlohmann::json describe_run(const run_files_config& what, const starting_state& state, const nlohmann::json& before) {
  auto result = nlohmann::json{{"run", what.run.value},
                               {"name", what.config.run.name},
                               {"function", what.function},
                               {"program", what.services.program_path},
                               {"build_id", what.services.build_id},
                               {"seed", what.config.run.seed},
                               {"shards", what.config.scaling.shards},
                               {"workers", to_string(what.config.scaling.num_workers)},
                               {"loaded_from", state.loaded_from},
                               {"resumed_from_step", state.step.value},
                               {"config", what.config.config},
                               {"options", what.config.options},
                               {"replay", describe_replay(what, state)}};
  describe_job(result, what.config.run.job);
  if (state.is_own() && before.is_object())
    keep_origin(result, before);
  return result;
}

run_identity identity_of(const run_files_config& what) {
  return {what.services.build_id, what.config.run.seed, what.config.scaling.shards, collectives::tree_version,
          what.config.config.dump()};
}

} // namespace troupe::actors

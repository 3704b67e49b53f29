#include "driver/replay.hpp"

#include <troupe/trainer.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace troupe::runtime {

namespace fs = std::filesystem;

namespace {

/// `request` is what `tools/troupe/run/replay.cpp` writes; its "run" is the run's `run.json`.
trainer_config configuration_of(const nlohmann::json& request) {
  const auto& run = request.at("run");
  const auto& how = run.at("replay");
  trainer_config config;
  config.scaling.num_workers = request.at("workers").get<std::uint32_t>();
  config.scaling.shards = run.at("shards").get<std::uint32_t>();
  config.scaling.resources_per_worker.gpus = how.at("gpus").get<double>();
  config.run.name = run.at("name").get<std::string>();
  config.run.storage_path = request.at("storage").get<std::string>();
  const auto has_checkpoint = !request.at("checkpoint").get<std::string>().empty();
  config.run.resume = has_checkpoint ? resume_mode::required : resume_mode::automatic;
  // It may be the one that the program of these steps went on from.
  config.run.allow_changed = {.program = true, .configuration = true, .libraries = true};
  config.run.steps = how.at("steps").get<std::uint64_t>();
  config.run.stop_after = request.at("until").get<std::uint64_t>();
  config.run.seed = run.at("seed").get<std::uint64_t>();
  config.run.keep_ledger = true;
  // It holds links to files of the run.
  config.checkpoint.num_to_keep = 1'000'000;
  config.checkpoint.reuse_unchanged = false;
  config.config = run.at("config");
  config.options = run.at("options");
  config.arguments = how.at("arguments").get<std::vector<std::string>>();
  config.load_checkpoint = how.at("load_checkpoint").get<std::string>();
  const auto& load = how.at("load");
  config.load.allow_missing = load.at("allow_missing").get<bool>();
  config.load.ignore_extra = load.at("ignore_extra").get<bool>();
  config.load.keep_step = load.at("keep_step").get<bool>();
  config.load.renames = load.at("renames").get<std::map<std::string, std::string>>();
  return config;
}

/// Makes the checkpoint to begin with, if there is one, the only content of the directory of runs. That holds what an
/// earlier start has left if a debugger starts the program again.
void prepare_directory(const nlohmann::json& request) {
  const auto runs = fs::path{request.at("storage").get<std::string>()};
  fs::remove_all(runs);
  const auto checkpoint = fs::path{request.at("checkpoint").get<std::string>()};
  if (checkpoint.empty())
    return;
  const auto name = fs::path{request.at("run").at("name").get<std::string>()};
  const auto to = runs / name.filename() / "checkpoints" / checkpoint.filename();
  fs::create_directories(to);
  for (const auto& file : fs::directory_iterator{checkpoint})
    fs::create_symlink(file.path(), to / file.path().filename());
}

int replay(const std::vector<function>& functions, const std::string& path) {
  auto file = std::ifstream{path};
  const auto request = nlohmann::json::parse(file);
  prepare_directory(request);
  auto name = std::string{"replay"};
  char* arguments[] = {name.data(), nullptr};
  const auto program = app{1, arguments, functions};
  auto again = trainer{program, program.find_function(request.at("run").at("function").get<std::string>()),
                       configuration_of(request)};
  run_callbacks callbacks;
  // Where it resumes from, and that it stops, is what was asked for.
  callbacks.notice = [](const run_notice& what) {
    if (what.warning)
      std::fprintf(stderr, "warning: %s\n", what.text.c_str());
  };
  again.set_callbacks(std::move(callbacks));
  const auto result = again.fit();
  if (result.reason.code != errc::none)
    std::fprintf(stderr, "%s\n", result.reason.message.c_str());
  return again.exit_code();
}

} // namespace

void run_if_replay(const std::vector<function>& functions) {
  const auto* variable = std::getenv(replay_variable);
  if (variable == nullptr)
    return;
  const auto path = std::string{variable};
  // Processes that this one starts do not.
  ::unsetenv(replay_variable);
  try {
    std::exit(replay(functions, path));
  } catch (const std::exception& x) {
    std::fprintf(stderr, "%s\n", x.what());
    std::exit(1);
  }
}

} // namespace troupe::runtime

#include "driver/run_naming.hpp"

#include <troupe/actors/run_name.hpp>
#include <troupe/config.hpp>
#include <troupe/shell_words.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace troupe::runtime {

void name_run(trainer_config& config) {
  if (!config.run.name.empty() || !validate(config))
    return;
  auto ignored = std::error_code{};
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored).filename().string();
  config.run.name = actors::reserve_run(config.run.storage_path, program, std::chrono::system_clock::now());
}

std::vector<std::string> own_arguments() {
  std::vector<std::string> result;
  auto in = std::ifstream{"/proc/self/cmdline"};
  for (std::string word; std::getline(in, word, '\0');)
    result.push_back(std::move(word));
  return result;
}

void obey_in_process_variable(trainer_config& config) {
  const auto* name = std::getenv(in_process_variable);
  if (name == nullptr || (!config.run.name.empty() && config.run.name != name))
    return;
  config.run.name = name;
  config.run.resume = resume_mode::automatic;
  config.run.debug_rank.reset();
  config.scaling.num_workers = 0;
  config.cluster.nodes.clear();
  config.cluster.discover = {};
}

std::string in_one_process(const std::vector<std::string>& arguments, const std::string& name) {
  auto command = std::string{};
  for (const auto& word : arguments)
    command += " " + shell_quoted(word);
  const auto variable = fmt::format("{}={}", in_process_variable, shell_quoted(name));
  return fmt::format("\nRepeat it in one process:\n  {}{}\nor in a debugger:\n  {} gdb --args{}", variable, command,
                     variable, command);
}

} // namespace troupe::runtime

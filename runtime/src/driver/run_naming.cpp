#include "driver/run_naming.hpp"

#include <troupe/actors/run_name.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string_view>
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

std::string in_one_process(const std::vector<std::string>& arguments, const std::string& name) {
  constexpr std::array<std::string_view, 4> replaced{"--workers", "--name", "--resume", "--nodes"};
  auto command = std::string{};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& word = arguments[i];
    if (std::ranges::find(replaced, word) != replaced.end()) {
      ++i;
      continue;
    }
    if (std::ranges::any_of(replaced, [&](auto each) { return word.starts_with(std::string{each} + "="); }))
      continue;
    // A quote cannot stand between quotes.
    auto quoted = word;
    for (auto at = quoted.find('\''); at != std::string::npos; at = quoted.find('\'', at + 4))
      quoted.replace(at, 1, "'\\''");
    const auto is_plain = word.find_first_of(" \t\n'\"\\$`&|;<>()*?[]#~!{}") == std::string::npos && !word.empty();
    command += is_plain ? word + " " : "'" + quoted + "' ";
  }
  return fmt::format(
      "\nRepeat it in one process, under a debugger if you like (scaling.num_workers = 0): {}--workers 0 "
      "--name {}",
      command, name);
}

} // namespace troupe::runtime

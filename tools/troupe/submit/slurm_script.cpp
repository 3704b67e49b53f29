#include "submit/embedded.hpp"
#include "submit/submission.hpp"

#include <troupe/shell_words.hpp>

#include <fmt/format.h>

#include <sstream>
#include <string_view>

namespace troupe::tool {

namespace {

/// The variable as the script sets it: the job's number is known when Slurm starts it.
std::string job_variable_setting(runtime::job_context job) {
  constexpr std::string_view number = "$SLURM_JOB_ID";
  job.job.id = number;
  auto text = shell_quoted(to_text(job));
  const auto at = text.find(number);
  return fmt::format("{}={}", runtime::job_variable,
                     text.substr(0, at) + "'\"" + std::string{number} + "\"'" + text.substr(at + number.size()));
}

} // namespace

std::string slurm_script(const submission& job, const std::vector<std::string>& options) {
  // Slurm reads #SBATCH lines up to the first command. A later one counts.
  std::string directives = fmt::format("#SBATCH --job-name={}\n", job.name);
  for (const auto& each : options)
    directives += fmt::format("#SBATCH {}\n", shell_quoted(each));
  auto setting = fmt::format("cd -- {}\nexport {}\n", shell_quoted(job.directory), job_variable_setting(job.job));
  for (const auto& [name, value] : job.environment)
    setting += fmt::format("export {}={}\n", name, shell_quoted(value));
  setting += "set -- " + shell_quoted(job.program);
  for (const auto& each : job.arguments)
    setting += " " + shell_quoted(each);
  std::string result;
  auto in = std::istringstream{std::string{embedded_slurm_sbatch()}};
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("#SBATCH --job-name"))
      continue;
    if (line.starts_with("# Usage:")) {
      result += directives;
      directives.clear();
    }
    result += line + "\n";
    if (line == "set -euo pipefail")
      result += setting + "\n";
  }
  return result;
}

} // namespace troupe::tool

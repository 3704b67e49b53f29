#pragma once

#include <troupe/error.hpp>

#include <string>
#include <vector>

namespace troupe::tool {

/// A word as a shell reads it back.
[[nodiscard]] std::string shell_quoted(const std::string& word);

/// This command line without `--host` and its value. Words behind `--` stay.
[[nodiscard]] std::vector<std::string> without_host(const std::vector<std::string>& arguments);

/// Has `troupe` on another host do what this command line says, without its `--host`, and passes its output on: over
/// ssh, or the command that TROUPE_SSH is (words). Returns the exit code there; `exit_trouble`, after the reason was
/// printed, if it cannot be reached.
[[nodiscard]] int execute_over_ssh(const std::string& host, const std::vector<std::string>& arguments);

/// Notes the program's arguments for `execute_over_ssh` before they are parsed.
void keep_arguments(int argc, char** argv);
[[nodiscard]] const std::vector<std::string>& kept_arguments();

} // namespace troupe::tool

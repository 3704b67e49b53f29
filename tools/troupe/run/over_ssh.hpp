#pragma once

#include "command.hpp"
#include <troupe/error.hpp>

#include <string>
#include <vector>

namespace troupe::tool {

/// This command line without `--host` and its value. Words behind `--` stay.
[[nodiscard]] std::vector<std::string> without_host(const std::vector<std::string>& arguments);

/// Has a shell on another host do something: over ssh, or the command that TROUPE_SSH is (words). Fails if the host
/// cannot be reached, or lacks the program.
[[nodiscard]] expected<finished_command> run_over_ssh(const std::string& host, const std::string& there,
                                                      command_streams streams);

/// Has `troupe` on another host execute these arguments, and passes its output on. Returns the exit code there;
/// `exit_trouble`, after the reason was printed, if it cannot be reached.
[[nodiscard]] int execute_over_ssh(const std::string& host, const std::vector<std::string>& arguments);

/// Notes the program's arguments for `execute_over_ssh` before they are parsed.
void keep_arguments(int argc, char** argv);
[[nodiscard]] const std::vector<std::string>& kept_arguments();

} // namespace troupe::tool

#pragma once

#include <optional>
#include <string>
#include <vector>

namespace troupe::chaos {

/// Runs a system program to its end. Returns its output if it failed, and nothing if it succeeded.
[[nodiscard]] std::optional<std::string> complaint_of(const std::vector<std::string>& argv);

/// Splits a command line as a shell does, without running anything in it. Empty for an invalid one.
[[nodiscard]] std::vector<std::string> split_command(const std::string& text);

} // namespace troupe::chaos

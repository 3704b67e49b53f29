#pragma once

#include <optional>
#include <string>
#include <vector>

namespace troupe::chaos {

/// Runs a program of the system to its end; its output, if it failed. Nothing when it succeeded.
[[nodiscard]] std::optional<std::string> complaint_of(const std::vector<std::string>& argv);

/// Splits a command line as a shell does, without running anything; empty where it cannot be meant.
[[nodiscard]] std::vector<std::string> split_command(const std::string& text);

} // namespace troupe::chaos

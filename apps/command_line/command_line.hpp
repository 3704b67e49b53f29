#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troupe::apps {

/// Exit codes that all programs share.
inline constexpr int exit_usage = 2;

/// Parses the command line. Returns nothing when the program is to go on, and its exit code otherwise: 0 after `--help`
/// or `--version`, `exit_usage` after a mistake, which has been told on standard error, an unknown option together with
/// the nearest that exists.
[[nodiscard]] std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv);

/// Of an option: any number above 0. CLI11's own names the largest one, with all of its 309 digits.
[[nodiscard]] CLI::Validator positive_number();

/// Adds `--verify-determinism` for `run_config::verify_determinism`: in every tenth step without a number.
void add_verify_determinism(CLI::App& app, std::uint64_t& every);

/// A metric for people, with so many digits behind the point; "not evaluated yet" where it was not reported.
[[nodiscard]] std::string metric_text(const std::map<std::string, double>& metrics, const std::string& name,
                                      int digits);

/// The candidate that takes the fewest insertions, deletions and replacements to make from `word` (Levenshtein); empty
/// when none is near.
[[nodiscard]] std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

} // namespace troupe::apps

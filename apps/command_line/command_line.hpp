#pragma once

#include <troupe/config.hpp>

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troupe::apps {

/// Exit codes that all programs share.
inline constexpr int exit_usage = 2;

/// Parses the command line. Returns an exit code if the program should end: 0 after `--help` or `--version`,
/// `exit_usage` after an error, which is reported on standard error. For an unknown option the message names the
/// nearest existing one. `--describe FORM`, which `--help` does not show, prints the manual page ("man") or a
/// completion script
/// ("bash", "zsh") instead, made of the same description.
[[nodiscard]] std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv);

/// Accepts any number above 0. (CLI11's own validator prints the largest number with all of its 309 digits.)
[[nodiscard]] CLI::Validator positive_number();

/// Accepts what `parse_worker_range` does.
[[nodiscard]] CLI::Validator worker_range_text();

/// Adds `--name`.
void add_name(CLI::App& app, std::string& name);

/// Adds `--resume` and `--allow-changed`.
void add_resume(CLI::App& app, run_config& run);

/// Adds `--mirror`, `--mirror-keep` and `--mirror-wait`.
void add_mirror(CLI::App& app, mirror_config& mirror);
/// Adds `--time-limit`.
void add_time_limit(CLI::App& app, run_config& run);

/// Adds `--check-every-step`.
void add_check_every_step(CLI::App& app, bool& check);

/// Adds `--debug-rank`.
void add_debug_rank(CLI::App& app, std::optional<std::uint32_t>& rank);

/// Adds `--ledger`.
void add_ledger(CLI::App& app, bool& keep_ledger);

/// Adds `--verify-determinism` for `run_config::verify_determinism`; without a number it means every tenth step.
void add_verify_determinism(CLI::App& app, std::uint64_t& every);

/// Adds `--metrics`.
void add_metrics_address(CLI::App& app, std::string& address);

/// Adds `--metrics` and `--tensorboard`.
void add_monitoring(CLI::App& app, monitoring_config& monitoring);

/// An option that programs had once: whoever gives it, in whatever place, is told what to do instead. Both texts
/// outlive the app.
void refuse_removed(CLI::App& app, const char* option, const char* instead);

/// Adds `--nodes`, `--hosts` and `--discover`.
void add_node_names(CLI::App& app, cluster_config& cluster);

/// The same, `--trusted-network` and `--port-range`.
void add_nodes(CLI::App& app, cluster_config& cluster);

/// Adds `--wait`, `--memory-per-worker`, `--resource-per-worker` and `--node-label`.
void add_leases(CLI::App& app, scaling_config& scaling);

/// Adds `--use-gpu` and `--gpus-per-worker`.
void add_gpus(CLI::App& app, scaling_config& scaling);

/// Adds an option that takes NAME=VALUE, any number of times. `take` throws `CLI::ValidationError` for a value that is
/// wrong.
CLI::Option* add_named_values(CLI::App& app, const std::string& option,
                              std::function<void(const std::string& name, const std::string& value)> take,
                              const std::string& description);

/// Reads a number of at least 1; throws `CLI::ValidationError`, naming the option, for anything else.
[[nodiscard]] std::uint64_t parse_count(const std::string& option, const std::string& text);

/// A metric as text with the given number of decimal places; "not evaluated yet" if it was not reported.
[[nodiscard]] std::string metric_text(const std::map<std::string, double>& metrics, const std::string& name,
                                      int digits);

/// The candidate with the smallest Levenshtein distance to `word`; empty if none is near.
[[nodiscard]] std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

} // namespace troupe::apps

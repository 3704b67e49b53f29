#pragma once

#include <troupe/error.hpp>

#include <CLI/CLI.hpp>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace troupe::apps {

/// A line of a configuration file.
struct config_line {
  /// The option's name, without dashes.
  std::string key;
  std::vector<std::string> values;
  std::size_t number = 0;

  bool operator==(const config_line&) const = default;
};

/// Parses lines `key = value`. A value is a word, a text in double quotes (with \" and \\), or a list of these in
/// square brackets. Empty lines, and what follows `#`, do not count. Fails with `errc::invalid_argument`, naming the
/// line. `name` is the file's, for messages.
[[nodiscard]] expected<std::vector<config_line>> parse_config(const std::string& name, const std::string& text);

/// The options of a program from four places, each of which takes precedence over those after it: the command line, the
/// environment, a configuration file, and the defaults. Options named in `excepted` are for the command line alone, and
/// so is `--help`.
class layered_options {
 public:
  using variables = std::function<const char*(const char*)>;

  /// `prefix` begins the names of environment variables: PREFIX_PROGRAM_DIR stands for `--program-dir`.
  layered_options(CLI::App& app, std::string prefix, std::vector<std::string> excepted)
      : app_(app), prefix_(std::move(prefix)), excepted_(std::move(excepted)) {}

  /// After the command line was parsed. Fails with `errc::invalid_argument`, naming the variable.
  [[nodiscard]] expected<void> take_environment(const variables& get);

  /// After the environment. Fails with `errc::invalid_argument` for an unknown key and a wrong value, naming file and
  /// line, and with `errc::io_error` for a file that cannot be read.
  [[nodiscard]] expected<void> take_file(const std::filesystem::path& path);

  /// All options with the values that count, in the file's syntax; those without a value as comments.
  [[nodiscard]] std::string dump() const;

 private:
  [[nodiscard]] std::vector<CLI::Option*> options() const;

  CLI::App& app_;
  std::string prefix_;
  std::vector<std::string> excepted_;
};

} // namespace troupe::apps

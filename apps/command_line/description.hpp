#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace troupe::apps {

/// An option or an argument of a program, as `--help` describes it.
struct option_description {
  /// With their dashes, the short ones first; empty for an argument without a name, such as PATH.
  std::vector<std::string> names;
  /// What stands for the value, such as TEXT; for an argument its own name; empty for a flag.
  std::string value;
  /// The words that the value may be; empty if it is free.
  std::vector<std::string> choices;
  std::string text;
  std::string default_value;
  /// The variable that also sets it, or empty.
  std::string environment;
  std::vector<std::string> needs;
  std::vector<std::string> excludes;
  bool is_required = false;
  /// Takes several values.
  bool is_list = false;

  [[nodiscard]] bool is_flag() const { return value.empty(); }
};

/// Options under one heading.
struct option_group_description {
  std::string title;
  std::vector<option_description> options;
};

/// A program, or one of its commands.
struct command_description {
  /// With the names of the commands before it, such as "troupe checkpoint ls".
  std::string name;
  std::string text;
  std::vector<option_description> arguments;
  std::vector<option_group_description> groups;
  std::vector<command_description> commands;
  std::string footer;

  /// The last word of the name.
  [[nodiscard]] std::string word() const;
};

/// All that `--help` says about a program and its commands: the one source of its manual page and completions. Hidden
/// options and commands are left out, as in `--help`.
[[nodiscard]] command_description describe(const CLI::App& app);

/// A page for man(1), in the language of groff_man(7).
[[nodiscard]] std::string manual_page(const command_description& program, const std::string& version);

/// A script for bash that completes commands, options and the words that options accept, and files otherwise.
[[nodiscard]] std::string bash_completion(const command_description& program);

/// The same for zsh, with the options' descriptions.
[[nodiscard]] std::string zsh_completion(const command_description& program);

} // namespace troupe::apps

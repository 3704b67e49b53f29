#include "description.hpp"

#include <troupe/shell_words.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>

namespace troupe::apps {

namespace {

/// A shell function's name: letters, digits and underscores.
std::string function_name(const std::string& command) {
  auto result = "_" + command;
  std::ranges::replace_if(
      result, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return result;
}

/// The command line so far without the program's name: "" or " checkpoint ls".
std::string path_of(const command_description& command, const command_description& program) {
  return command.name.substr(program.name.size());
}

std::vector<const command_description*> all_commands(const command_description& from) {
  auto result = std::vector{&from};
  for (const auto& command : from.commands)
    std::ranges::copy(all_commands(command), std::back_inserter(result));
  return result;
}

std::vector<const option_description*> all_options(const command_description& command) {
  std::vector<const option_description*> result;
  for (const auto& group : command.groups)
    for (const auto& option : group.options)
      result.push_back(&option);
  return result;
}

/// The branches of a `case` over the command line so far that say what may follow.
std::string bash_words(const command_description& command, const command_description& program) {
  std::vector<std::string> options;
  for (const auto* option : all_options(command))
    options.insert(options.end(), option->names.begin(), option->names.end());
  std::vector<std::string> commands;
  for (const auto& each : command.commands)
    commands.push_back(each.word());
  return fmt::format("    {})\n      options={}\n      commands={}\n      ;;\n",
                     shell_quoted(path_of(command, program)), shell_quoted(fmt::format("{}", fmt::join(options, " "))),
                     shell_quoted(fmt::format("{}", fmt::join(commands, " "))));
}

/// The same over the command line and the option before the word.
std::string bash_values(const command_description& command, const command_description& program) {
  std::string result;
  for (const auto* option : all_options(command)) {
    if (option->is_flag())
      continue;
    std::vector<std::string> patterns;
    for (const auto& name : option->names)
      patterns.push_back(shell_quoted(path_of(command, program) + " " + name));
    result += fmt::format("    {}) value=yes words={} ;;\n", fmt::join(patterns, " | "),
                          shell_quoted(fmt::format("{}", fmt::join(option->choices, " "))));
  }
  return result;
}

/// In an argument of zsh's _arguments, in single quotes.
std::string zsh_text(const std::string& text) {
  std::string result;
  for (const auto c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\')
      result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

std::string zsh_action(const option_description& option) {
  if (option.choices.empty())
    return "_files";
  // Words that a comma separates are completed one after the other.
  if (option.is_list)
    return fmt::format("_values -s , {} {}", zsh_text(option.value), fmt::join(option.choices, " "));
  return fmt::format("({})", fmt::join(option.choices, " "));
}

std::string zsh_option(const option_description& option) {
  std::string result;
  for (const auto& name : option.names) {
    const auto is_long = name.starts_with("--");
    auto spec = fmt::format("{}{}[{}]", name, option.is_flag() ? "" : is_long ? "=" : "+", zsh_text(option.text));
    if (!option.is_flag())
      spec += fmt::format(":{}:{}", zsh_text(option.value), zsh_action(option));
    result += fmt::format("    {} \\\n", shell_quoted((option.is_list ? "*" : "") + spec));
  }
  return result;
}

std::string zsh_function(const command_description& command) {
  auto result = fmt::format("{}() {{\n", function_name(command.name));
  if (!command.commands.empty())
    result += "  local curcontext=$curcontext state\n  local -a line\n  typeset -A opt_args\n";
  result += "  _arguments -S" + std::string{command.commands.empty() ? "" : " -C"} + " \\\n";
  for (const auto* option : all_options(command))
    result += zsh_option(*option);
  for (const auto& argument : command.arguments)
    result += fmt::format("    {} \\\n", shell_quoted(fmt::format("{}:{}:{}", argument.is_list ? "*" : "",
                                                                  zsh_text(argument.value), zsh_action(argument))));
  if (command.commands.empty())
    return result + "    && return 0\n}\n\n";
  std::string words;
  std::string branches;
  for (const auto& each : command.commands) {
    words += " " + shell_quoted(each.word() + ":" + zsh_text(each.text));
    branches += fmt::format("    {}) {} ;;\n", each.word(), function_name(each.name));
  }
  result += fmt::format("    '1:command:->commands' '*::argument:->arguments' && return 0\n"
                        "  case $state in\n"
                        "  commands)\n"
                        "    local -a commands=({})\n"
                        "    _describe command commands\n"
                        "    ;;\n"
                        "  arguments)\n"
                        "    case $line[1] in\n{}    esac\n"
                        "    ;;\n"
                        "  esac\n}}\n\n",
                        words, branches);
  return result;
}

} // namespace

std::string bash_completion(const command_description& program) {
  const auto commands = all_commands(program);
  std::string known;
  std::string words;
  std::string values;
  for (const auto* command : commands) {
    if (command != &program)
      known +=
          fmt::format("      {}) path+=\" ${{COMP_WORDS[index]}}\" ;;\n", shell_quoted(path_of(*command, program)));
    words += bash_words(*command, program);
    values += bash_values(*command, program);
  }
  const auto name = function_name(program.name);
  auto result = fmt::format("# Completion of {} in bash. Made by {} from its own options.\n"
                            "{}() {{\n"
                            "  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}}\n"
                            "  local path='' options='' commands='' value='' words='' index\n",
                            program.name, program.name, name);
  // readline splits --option=value into three words.
  result += "  if [[ $current == '=' ]]; then\n"
            "    current=''\n"
            "  elif [[ $previous == '=' && $COMP_CWORD -gt 2 ]]; then\n"
            "    previous=${COMP_WORDS[COMP_CWORD - 2]}\n"
            "  fi\n";
  if (!known.empty())
    result += "  for ((index = 1; index < COMP_CWORD; index++)); do\n"
              "    case \"$path ${COMP_WORDS[index]}\" in\n" +
              known + "    esac\n  done\n";
  result += "  case $path in\n" + words + "  esac\n";
  if (!values.empty())
    result += "  case \"$path $previous\" in\n" + values + "  esac\n";
  result += "  COMPREPLY=()\n"
            "  if [[ -n $value ]]; then\n"
            "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
            "  elif [[ $current == -* ]]; then\n"
            "    mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$current\")\n"
            "  else\n"
            "    mapfile -t COMPREPLY < <(compgen -W \"$commands\" -- \"$current\")\n"
            "  fi\n}\n";
  return result + fmt::format("complete -o default -F {} {}\n", name, program.name);
}

std::string zsh_completion(const command_description& program) {
  auto result = fmt::format("#compdef {}\n# Completion of {} in zsh. Made by {} from its own options.\n\n",
                            program.name, program.name, program.name);
  for (const auto* command : all_commands(program))
    result += zsh_function(*command);
  return result + fmt::format("{} \"$@\"\n", function_name(program.name));
}

} // namespace troupe::apps

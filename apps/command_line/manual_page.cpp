#include "description.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <ranges>

namespace troupe::apps {

namespace {

/// Text of a paragraph. Dashes are those of the keyboard, so that options can be searched and copied.
std::string escaped(const std::string& text) {
  std::string result;
  for (const auto c : text)
    switch (c) {
    case '\\':
      result += "\\e";
      break;
    case '-':
      result += "\\-";
      break;
    case '\'':
      result += "\\(aq";
      break;
    case '^':
      result += "\\(ha";
      break;
    case '~':
      result += "\\(ti";
      break;
    case '`':
      result += "\\(ga";
      break;
    default:
      result += c;
    }
  // A line that begins with a dot would be a request.
  return result.starts_with('.') ? "\\&" + result : result;
}

std::string bold(const std::string& text) {
  return "\\fB" + escaped(text) + "\\fR";
}

std::string italic(const std::string& text) {
  return "\\fI" + escaped(text) + "\\fR";
}

std::string heading(const std::string& text) {
  std::string result;
  std::ranges::transform(text, std::back_inserter(result), [](unsigned char c) { return std::toupper(c); });
  return fmt::format(".SH \"{}\"\n", escaped(result));
}

std::vector<std::string> lines_of(const std::string& text) {
  return CLI::detail::split(text, '\n');
}

/// Paragraphs as `--help` prints them: a line that is indented keeps its end.
std::string paragraphs(const std::string& text) {
  std::string result;
  auto keeps_ends = false;
  for (const auto& line : lines_of(text)) {
    if (keeps_ends != line.starts_with(' ')) {
      keeps_ends = !keeps_ends;
      result += keeps_ends ? ".nf\n" : ".fi\n";
    }
    result += line.empty() ? ".PP\n" : escaped(line) + "\n";
  }
  return result + (keeps_ends ? ".fi\n" : "");
}

std::string value_of(const option_description& x) {
  if (x.choices.empty())
    return italic(x.value);
  std::string result;
  for (const auto& word : x.choices)
    result += (result.empty() ? "" : "|") + bold(word);
  return result;
}

std::string remarks(const option_description& x) {
  std::string result;
  if (x.is_required && !x.names.empty())
    result += " Required.";
  if (!x.default_value.empty())
    result += fmt::format(" Default: {}.", bold(x.default_value));
  if (!x.environment.empty())
    result += fmt::format(" Environment: {}.", bold(x.environment));
  if (!x.needs.empty())
    result += fmt::format(" Needs {}.", bold(fmt::format("{}", fmt::join(x.needs, ", "))));
  if (!x.excludes.empty())
    result += fmt::format(" Excludes {}.", bold(fmt::format("{}", fmt::join(x.excludes, ", "))));
  return result;
}

/// An entry of a list: what it is, and under it what it does.
std::string entry(const option_description& x) {
  std::string tag;
  for (const auto& name : x.names)
    tag += (tag.empty() ? "" : ", ") + bold(name);
  if (!x.is_flag())
    tag += (tag.empty() ? "" : " ") + value_of(x) + (x.is_list ? " ..." : "");
  auto text = escaped(x.text);
  auto more = remarks(x);
  if (!text.empty() && !more.empty() && !text.ends_with('.'))
    text += '.';
  return fmt::format(".TP\n{}\n{}{}\n", tag, text, more);
}

std::string usage(const command_description& x) {
  auto result = bold(x.name);
  const auto has_options = std::ranges::any_of(x.groups, [](const auto& group) { return !group.options.empty(); });
  if (has_options)
    result += " [" + italic("OPTION") + "]...";
  for (const auto& argument : x.arguments) {
    auto name = italic(argument.value) + (argument.is_list ? "..." : "");
    result += argument.is_required ? " " + name : " [" + name + "]";
  }
  if (!x.commands.empty())
    result += " " + italic("COMMAND");
  return result;
}

/// The commands without further commands, each in a section of its own.
void add_commands(std::string& to, const command_description& x) {
  for (const auto& command : x.commands) {
    to += fmt::format(".SS \"{}\"\n{}\n.PP\n{}", escaped(command.name), usage(command), paragraphs(command.text));
    for (const auto& argument : command.arguments)
      to += entry(argument);
    for (const auto& group : command.groups)
      for (const auto& option : group.options)
        to += entry(option);
    if (!command.footer.empty())
      to += ".PP\n" + paragraphs(command.footer);
    add_commands(to, command);
  }
}

/// The first sentence, as a phrase.
std::string purpose(const command_description& x) {
  auto line = lines_of(x.text).front();
  line = line.substr(0, line.find(". "));
  while (line.ends_with('.') || line.ends_with(' '))
    line.pop_back();
  if (!line.empty())
    line.front() = static_cast<char>(std::tolower(static_cast<unsigned char>(line.front())));
  return line;
}

} // namespace

std::string manual_page(const command_description& program, const std::string& version) {
  auto title = program.name;
  std::ranges::transform(title, title.begin(), [](unsigned char c) { return std::toupper(c); });
  auto result = fmt::format(".\\\" Made by {} from its own options.\n.TH \"{}\" 1 \"\" \"Troupe {}\" \"Troupe\"\n",
                            program.name, escaped(title), version);
  result += heading("Name") + fmt::format("{} \\- {}\n", escaped(program.name), escaped(purpose(program)));
  result += heading("Synopsis") + usage(program) + "\n";
  result += heading("Description") + paragraphs(program.text);
  if (!program.arguments.empty())
    result += heading("Arguments");
  for (const auto& argument : program.arguments)
    result += entry(argument);
  for (const auto& group : program.groups) {
    result += heading(group.title == "Options" ? group.title : group.title + " options");
    for (const auto& option : group.options)
      result += entry(option);
  }
  if (!program.commands.empty())
    result += heading("Commands");
  add_commands(result, program);
  if (!program.footer.empty())
    result += heading("Notes") + paragraphs(program.footer);
  result += heading("See also");
  for (const auto* other : {"caf-node", "charlm", "troupe"})
    if (program.name != other)
      result += fmt::format(".BR {} (1),\n", escaped(other));
  return result + "and the documents in /usr/share/doc/troupe.\n";
}

} // namespace troupe::apps

#include "description.hpp"

#include <algorithm>
#include <iterator>

namespace troupe::apps {

namespace {

/// The words of a validator such as CLI::IsMember, which is described as TEXT:{shm,tcp}.
std::vector<std::string> choices_in(const std::string& type) {
  const auto begin = type.find('{');
  const auto end = type.rfind('}');
  if (begin == std::string::npos || end == std::string::npos || end < begin)
    return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

std::vector<std::string> names_of(const std::set<CLI::Option*>& options) {
  std::vector<std::string> result;
  std::ranges::transform(options, std::back_inserter(result), [](const CLI::Option* x) { return x->get_name(); });
  // The set is ordered by address.
  std::ranges::sort(result);
  return result;
}

option_description describe_option(const CLI::Option& option) {
  option_description result;
  for (const auto& name : option.get_snames())
    result.names.push_back("-" + name);
  for (const auto& name : option.get_lnames())
    result.names.push_back("--" + name);
  if (option.get_type_size() != 0) {
    const auto type = option.get_type_name();
    result.choices = choices_in(type);
    result.value = result.names.empty() ? option.get_name(true) : result.choices.empty() ? type : "WORD";
    result.default_value = option.get_default_str();
    result.is_list = option.get_expected_max() == CLI::detail::expected_max_vector_size;
    result.is_required = option.get_required();
  }
  result.text = option.get_description();
  result.environment = option.get_envname();
  result.needs = names_of(option.get_needs());
  result.excludes = names_of(option.get_excludes());
  return result;
}

void add_options(command_description& to, const CLI::App& app, const std::string& title) {
  // A group of options has a --help of its own, which --help does not show.
  const auto is_part = app.get_parent() != nullptr && app.get_name().empty();
  const auto is_shown = [&](const CLI::Option* x) {
    return !x->get_group().empty() && !(is_part && (x == app.get_help_ptr() || x == app.get_help_all_ptr()));
  };
  for (const auto* option : app.get_options(is_shown)) {
    if (option->get_positional()) {
      to.arguments.push_back(describe_option(*option));
      continue;
    }
    const auto heading = option->get_group() == "Options" ? title : option->get_group();
    auto group = std::ranges::find(to.groups, heading, &option_group_description::title);
    if (group == to.groups.end())
      group = to.groups.insert(group, {heading, {}});
    group->options.push_back(describe_option(*option));
  }
}

command_description describe_command(const CLI::App& app, const std::string& name) {
  command_description result;
  result.name = name;
  result.text = app.get_description();
  result.footer = app.get_footer();
  add_options(result, app, "Options");
  for (const auto* part : app.get_subcommands({})) {
    if (part->get_group().empty() || part->get_disabled())
      continue;
    if (!part->get_name().empty())
      result.commands.push_back(describe_command(*part, name + " " + part->get_name()));
    else
      // A group of options of the same program.
      add_options(result, *part, part->get_group());
  }
  return result;
}

} // namespace

std::string command_description::word() const {
  return name.substr(name.rfind(' ') + 1);
}

command_description describe(const CLI::App& app) {
  return describe_command(app, app.get_name());
}

} // namespace troupe::apps

#include "layered_options.hpp"

#include "command_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

namespace troupe::apps {

namespace {

constexpr std::string_view space = " \t\r";

/// Reads one line of a file from its beginning to its end.
class line_reader {
 public:
  explicit line_reader(std::string_view line) : rest_(line) { skip_space(); }

  /// At the end, or at a comment.
  [[nodiscard]] bool is_at_end() const { return rest_.empty() || rest_.front() == '#'; }

  /// Whether this character is next; then it is read.
  bool take(char wanted) {
    if (rest_.empty() || rest_.front() != wanted)
      return false;
    rest_.remove_prefix(1);
    skip_space();
    return true;
  }

  [[nodiscard]] std::optional<std::string> value() { return take_quote() ? quoted() : word(); }

  [[nodiscard]] std::optional<std::string> word() {
    const auto end = std::min(rest_.find_first_of(" \t\r#=,[]\""), rest_.size());
    if (end == 0)
      return std::nullopt;
    auto result = std::string{rest_.substr(0, end)};
    rest_.remove_prefix(end);
    skip_space();
    return result;
  }

 private:
  void skip_space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(space), rest_.size())); }

  bool take_quote() {
    if (rest_.empty() || rest_.front() != '"')
      return false;
    rest_.remove_prefix(1);
    return true;
  }

  std::optional<std::string> quoted() {
    std::string result;
    while (!rest_.empty()) {
      const auto next = rest_.front();
      rest_.remove_prefix(1);
      if (next == '"') {
        skip_space();
        return result;
      }
      if (next == '\\') {
        if (rest_.empty() || (rest_.front() != '"' && rest_.front() != '\\'))
          return std::nullopt;
        result += rest_.front();
        rest_.remove_prefix(1);
      } else {
        result += next;
      }
    }
    return std::nullopt;
  }

  std::string_view rest_;
};

/// Nothing for a line of another form.
std::optional<config_line> parse_line(line_reader line) {
  config_line result;
  auto key = line.word();
  if (!key || !line.take('='))
    return std::nullopt;
  result.key = std::move(*key);
  const auto is_list = line.take('[');
  while (!is_list || !line.take(']')) {
    auto value = line.value();
    if (!value)
      return std::nullopt;
    result.values.push_back(std::move(*value));
    if (!is_list)
      break;
    if (!line.take(',')) {
      if (!line.take(']'))
        return std::nullopt;
      break;
    }
  }
  return line.is_at_end() ? std::optional{std::move(result)} : std::nullopt;
}

std::string name_of(const CLI::Option& option) {
  return option.get_lnames().empty() ? std::string{} : option.get_lnames().front();
}

/// Gives an option these values as if they came from the command line. Returns why not, or nothing.
std::optional<std::string> assign(CLI::Option& option, const std::vector<std::string>& values) {
  try {
    option.clear();
    for (const auto& each : values)
      option.add_result(each);
    option.run_callback();
    return std::nullopt;
  } catch (const CLI::ParseError& x) {
    return x.what();
  }
}

std::string quoted(const std::string& text) {
  const auto is_plain = [](unsigned char c) { return std::isalnum(c) != 0; };
  if (!text.empty() && std::ranges::all_of(text, is_plain))
    return text;
  auto result = std::string{"\""};
  for (const auto each : text) {
    if (each == '"' || each == '\\')
      result += '\\';
    result += each;
  }
  return result + "\"";
}

} // namespace

expected<std::vector<config_line>> parse_config(const std::string& name, const std::string& text) {
  std::vector<config_line> result;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    const auto line = line_reader{std::string_view{text}.substr(begin, end - begin)};
    begin = end + 1;
    ++number;
    if (line.is_at_end())
      continue;
    auto parsed = parse_line(line);
    if (!parsed)
      return fail(
          errc::invalid_argument,
          fmt::format("{}:{}: not 'key = value', where a value is a word, a text in double quotes, or a list of "
                      "these in square brackets",
                      name, number));
    parsed->number = number;
    const auto first = std::ranges::find(result, parsed->key, &config_line::key);
    if (first != result.end())
      return fail(errc::invalid_argument, fmt::format("{}:{}: '{}' is set a second time, after line {}", name, number,
                                                      parsed->key, first->number));
    result.push_back(std::move(*parsed));
  }
  return result;
}

std::vector<CLI::Option*> layered_options::options() const {
  std::vector<CLI::Option*> result;
  for (auto* each : app_.get_options()) {
    const auto name = name_of(*each);
    if (!name.empty() && name != "help" && std::ranges::find(excepted_, name) == excepted_.end())
      result.push_back(each);
  }
  return result;
}

expected<void> layered_options::take_environment(const variables& get) {
  for (auto* each : options()) {
    auto variable = prefix_ + "_" + name_of(*each);
    std::ranges::transform(variable, variable.begin(),
                           [](unsigned char c) { return c == '-' ? '_' : static_cast<char>(std::toupper(c)); });
    const auto* value = each->count() == 0 ? get(variable.c_str()) : nullptr;
    if (value == nullptr || *value == '\0')
      continue;
    if (const auto why = assign(*each, {value}))
      return fail(errc::invalid_argument, fmt::format("the environment variable {}: {}", variable, *why));
  }
  return {};
}

expected<void> layered_options::take_file(const std::filesystem::path& path) {
  auto code = std::error_code{};
  if (std::filesystem::is_directory(path, code))
    return fail(errc::io_error, fmt::format("{}: is a directory, and no file", path.string()));
  auto in = std::ifstream{path};
  auto text = std::string{std::istreambuf_iterator<char>{in}, {}};
  if (!in)
    return fail(errc::io_error, fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  TROUPE_TRY(const auto lines, parse_config(path.string(), text));
  const auto known = options();
  std::vector<std::string> names;
  for (const auto* each : known)
    names.push_back(name_of(*each));
  for (const auto& line : lines) {
    const auto found = std::ranges::find(names, line.key);
    if (found == names.end()) {
      const auto near = nearest(line.key, names);
      return fail(errc::invalid_argument, fmt::format("{}:{}: unknown key '{}'{}", path.string(), line.number, line.key,
                                                      near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near)));
    }
    auto& option = *known[static_cast<std::size_t>(found - names.begin())];
    if (option.count() > 0)
      continue;
    if (const auto why = assign(option, line.values))
      return fail(errc::invalid_argument, fmt::format("{}:{}: {}", path.string(), line.number, *why));
  }
  return {};
}

std::string layered_options::dump() const {
  std::string result;
  for (const auto* each : options()) {
    // Hidden: it has gone (see refuse_removed).
    if (each->get_group().empty())
      continue;
    const auto name = name_of(*each);
    const auto is_list = each->get_expected_max() > 1;
    auto values = each->count() > 0 ? each->results() : std::vector<std::string>{};
    // An option whose value may be left out has no effect unless it is given.
    if (values.empty() && !each->get_default_str().empty() && each->get_items_expected_min() > 0)
      values = {each->get_default_str()};
    // A flag.
    if (values.empty() && each->get_items_expected_max() == 0)
      values = {"false"};
    if (values.empty()) {
      result += fmt::format("# {} =  # {}\n", name, each->get_description());
      continue;
    }
    std::string text;
    for (const auto& value : values)
      text += fmt::format("{}{}", text.empty() ? "" : ", ", quoted(value));
    result += is_list ? fmt::format("{} = [{}]\n", name, text) : fmt::format("{} = {}\n", name, text);
  }
  return result;
}

} // namespace troupe::apps

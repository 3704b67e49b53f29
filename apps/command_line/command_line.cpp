#include "command_line.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <numeric>

namespace troupe::apps {

namespace {

std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    auto diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      auto replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replaced});
    }
  }
  return row.back();
}

/// The subcommand that was chosen, or the program itself.
CLI::App& chosen(CLI::App& app) {
  auto parsed = app.get_subcommands();
  return parsed.empty() ? app : chosen(*parsed.front());
}

std::vector<std::string> words_of(CLI::App& app) {
  std::vector<std::string> result;
  for (const auto* option : app.get_options())
    for (const auto& name : option->get_lnames())
      result.push_back("--" + name);
  for (auto* command : app.get_subcommands([](CLI::App*) { return true; }))
    if (command->get_name().empty())
      // A group of options of this same program.
      std::ranges::copy(words_of(*command), std::back_inserter(result));
    else
      result.push_back(command->get_name());
  return result;
}

} // namespace

std::string metric_text(const std::map<std::string, double>& metrics, const std::string& name, int digits) {
  auto found = metrics.find(name);
  if (found == metrics.end())
    return "not evaluated yet";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, found->second);
  return text.data();
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  auto best = std::string{};
  auto limit = word.size() / 2 + 1;
  for (const auto& each : candidates)
    if (auto d = distance(word, each); d < limit) {
      limit = d;
      best = each;
    }
  return best;
}

std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv) {
  auto name = app.get_name();
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ExtrasError&) {
    auto& where = chosen(app);
    auto extras = app.remaining(true);
    auto word = extras.empty() ? std::string{} : extras.front().substr(0, extras.front().find('='));
    auto near = nearest(word, words_of(where));
    std::fprintf(stderr, "%s: %s '%s'%s; see %s --help\n", name.c_str(),
                 word.starts_with("-") ? "unknown option" : "unexpected argument", word.c_str(),
                 near.empty() ? "" : (" (did you mean '" + near + "'?)").c_str(), name.c_str());
    return exit_usage;
  } catch (const CLI::Success& x) {
    return app.exit(x);
  } catch (const CLI::ParseError& x) {
    std::fprintf(stderr, "%s: %s; see %s --help\n", name.c_str(), x.what(), name.c_str());
    return exit_usage;
  }
}

CLI::Validator positive_number() {
  const auto check = [](const std::string& text) {
    char* end = nullptr;
    const auto value = std::strtod(text.c_str(), &end);
    return *end == '\0' && value > 0 && std::isfinite(value) ? std::string{} : text + " is no number above 0";
  };
  return {check, "POSITIVE"};
}

void add_verify_determinism(CLI::App& app, std::uint64_t& every) {
  app.add_flag(
      "--verify-determinism{10}", every,
      "In every so many steps (10 without a number: --verify-determinism=3) compute a shard a second time, on "
      "another worker, and end the run, naming the tensor, if one bit differs. Costs one shard in such a step");
}

} // namespace troupe::apps

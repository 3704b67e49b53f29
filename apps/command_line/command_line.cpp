#include "command_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
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

/// The selected subcommand, or the program itself.
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
      // A group of options of the same program.
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
  return fmt::format("{:.{}f}", found->second, digits);
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
                 near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near).c_str(), name.c_str());
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
    return *end == '\0' && value > 0 && std::isfinite(value) ? std::string{}
                                                             : fmt::format("{} is not a number above 0", text);
  };
  return {check, "POSITIVE"};
}

CLI::Validator worker_range_text() {
  const auto check = [](const std::string& text) {
    auto range = parse_worker_range(text);
    return range ? std::string{} : range.error().message;
  };
  return {check, ""};
}

void add_name(CLI::App& app, std::string& name) {
  app.add_option("--name", name,
                 "Name of the run's directory; a run of this name that exists is resumed (default: a fresh directory, "
                 "which 'latest' in the storage directory leads to)");
}

void add_resume(CLI::App& app, run_config& run) {
  auto& mode = run.resume;
  app.add_option_function<std::vector<std::string>>(
         "--allow-changed",
         [&allowed = run.allow_changed](const std::vector<std::string>& words) {
           for (const auto& word : words)
             (word == "program"         ? allowed.program
              : word == "configuration" ? allowed.configuration
                                        : allowed.libraries) = true;
         },
         "What may differ from the checkpoint that the run resumes from, such as program,configuration; the result "
         "names what computed which steps")
      ->delimiter(',')
      ->check(CLI::IsMember({"program", "configuration", "libraries"}));
  app.add_option_function<std::string>(
         "--resume",
         [&mode](const std::string& word) {
           mode = word == "never"      ? resume_mode::never
                  : word == "restart"  ? resume_mode::restart
                  : word == "required" ? resume_mode::required
                                       : resume_mode::automatic;
         },
         "What to do with a run of this name: auto: resume from its latest checkpoint, if any; restart: move it aside "
         "and begin anew; never: fail if it exists; required: fail without a checkpoint")
      ->check(CLI::IsMember({"auto", "restart", "never", "required"}))
      ->default_str("auto");
}

void add_check_every_step(CLI::App& app, bool& check) {
  app.add_flag("--check-every-step", check, "Check in every step that its body does not write state too early");
}

void add_ledger(CLI::App& app, bool& keep_ledger) {
  app.add_flag("--ledger", keep_ledger,
               "Write ledger.jsonl: which worker computed which shards, and digests of each step for troupe replay");
}

void add_debug_rank(CLI::App& app, std::optional<std::uint32_t>& rank) {
  app.add_option("--debug-rank", rank,
                 "The worker with this rank waits for a debugger before it joins, and prints how to attach one");
}

void add_verify_determinism(CLI::App& app, std::uint64_t& every) {
  app.add_flag(
      "--verify-determinism{10}", every,
      "Compute one shard twice, on different workers, in every 10th step (=N: in every Nth), and end the run with the "
      "tensor's name if a bit differs. Costs one shard in such a step");
}

void add_nodes(CLI::App& app, cluster_config& cluster) {
  auto* nodes =
      app.add_option("--nodes", cluster.nodes, "HOST:PORT of caf-nodes, separated by commas (default: this machine)")
          ->delimiter(',');
  auto* hosts = app.add_option_function<std::string>(
                       "--hosts",
                       [&cluster](const std::string& path) {
                         auto in = std::ifstream{path};
                         const auto text = std::string{std::istreambuf_iterator<char>{in}, {}};
                         if (!in)
                           throw CLI::ValidationError{"--hosts", path + " cannot be read"};
                         if (auto taken = take_host_file(cluster, path, text); !taken)
                           throw CLI::ValidationError{"--hosts", taken.error().message};
                       },
                       "File with a line HOST[:PORT] [slots=N] for each caf-node; slots limits its workers")
                    ->type_name("FILE")
                    ->excludes(nodes);
  app.add_option(
         "--cluster", cluster.entry,
         "HOST:PORT of entry nodes, separated by commas: trains on the nodes of their cluster, also on those that "
         "come later")
      ->delimiter(',')
      ->excludes(nodes)
      ->excludes(hosts);
  app.add_flag("--trusted-network", cluster.trusted_network,
               "Do not encrypt gradients between hosts, because the network is private");
  app.add_option_function<std::string>(
         "--port-range",
         [&cluster](const std::string& text) {
           auto range = parse_port_range(text);
           if (!range)
             throw CLI::ValidationError{"--port-range", range.error().message};
           cluster.ports = *range;
         },
         "Ports for everything that listens during the run: two for each worker of a host, one more on the driver's")
      ->type_name("FIRST-LAST");
}

} // namespace troupe::apps

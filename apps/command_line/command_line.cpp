#include "command_line.hpp"

#include "description.hpp"

#include <troupe/node_names.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string_view>

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

/// What the build installs beside the program: `--describe man`, `bash` or `zsh`.
int print_description(const CLI::App& app, std::string_view form) {
  const auto program = describe(app);
  if (form == "man")
    std::fputs(manual_page(program, TROUPE_VERSION).c_str(), stdout);
  else if (form == "bash")
    std::fputs(bash_completion(program).c_str(), stdout);
  else if (form == "zsh")
    std::fputs(zsh_completion(program).c_str(), stdout);
  else {
    std::fprintf(stderr, "%s: --describe takes man, bash or zsh\n", program.name.c_str());
    return exit_usage;
  }
  // A full disk must not leave half of it.
  return std::fflush(stdout) == 0 ? 0 : 1;
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
  if (argc == 3 && argv[1] == std::string_view{"--describe"})
    return print_description(app, argv[2]);
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

void add_mirror(CLI::App& app, mirror_config& mirror) {
  auto* to = app.add_option(
                    "--mirror", mirror.to,
                    "Also copy checkpoints and results, in the background, to this directory, or to rclone:REMOTE:PATH "
                    "(S3, sftp and others, as rclone is configured); a run whose directory is lost resumes from there")
                 ->type_name("PLACE");
  app.add_option("--mirror-keep", mirror.num_to_keep, "Checkpoints to keep at the mirror")
      ->capture_default_str()
      ->needs(to);
  app.add_option_function<double>(
         "--mirror-wait",
         [&mirror](double seconds) {
           mirror.final_wait = std::chrono::milliseconds{std::llround(std::clamp(seconds, 0.0, 1e9) * 1000)};
         },
         "Seconds that a run which ends waits for its mirror")
      ->default_str("300")
      ->needs(to);
}

void add_time_limit(CLI::App& app, run_config& run) {
  app.add_option_function<std::string>(
         "--time-limit",
         [&run](const std::string& text) {
           const auto limit = parse_duration(text);
           if (!limit)
             throw CLI::ValidationError{"--time-limit", limit.error().message};
           run.time_limit = *limit;
         },
         "Take a checkpoint and stop after this time, such as 90s, 30m, 2h or 1h30m; exit code 75 says that the same "
         "command goes on from there")
      ->type_name("TIME");
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

void add_metrics_address(CLI::App& app, std::string& address) {
  app.add_option("--metrics", address,
                 "Serve metrics for Prometheus over HTTP, read-only, with /metrics, /healthz and /readyz; port 0 "
                 "chooses a free one. Beyond loopback whoever reaches it can read them (default: nothing listens)")
      ->type_name("HOST:PORT")
      ->check([](const std::string& text) {
        const auto where = parse_endpoint(text);
        return where ? std::string{} : where.error().message;
      });
}

void add_monitoring(CLI::App& app, monitoring_config& monitoring) {
  add_metrics_address(app, monitoring.metrics_address);
  app.add_flag("--tensorboard", monitoring.tensorboard,
               "Write TensorBoard's event files into the run's directory: tensorboard --logdir STORAGE");
  for (const auto* option : {"--mlflow", "--mlflow-experiment"})
    refuse_removed(app, option, "tools/trackers/troupe-mlflow RUN follows a run's files and logs it");
}

void add_node_names(CLI::App& app, cluster_config& cluster) {
  auto* nodes =
      app.add_option_function<std::string>(
             "--nodes",
             [&cluster](const std::string& text) {
               if (const auto named = name_nodes(cluster, text); !named)
                 throw CLI::ValidationError{"--nodes", named.error().message};
             },
             "HOST:PORT of caf-nodes, separated by commas, all of which are needed; or dns:NAME for those that "
             "the name's SRV records have from time to time (default: $TROUPE_NODES, else this machine)")
          ->type_name("NODES");
  const auto add_source = [&](const char* option, node_source::kind what, const char* description) {
    return app
        .add_option_function<std::string>(
            option,
            [&cluster, what](const std::string& path) {
              cluster.discover = {what, path};
            },
            description)
        ->type_name("FILE")
        ->check(CLI::ExistingFile)
        ->excludes(nodes);
  };
  auto* hosts = add_source("--hosts", node_source::kind::hosts_file,
                           "File with a line HOST[:PORT] [slots=N] for each caf-node; slots limits its workers. It may "
                           "change during the run (default: $TROUPE_HOSTS)");
  // What is wrong with it at the beginning is said at once.
  hosts->check([](const std::string& path) {
    auto in = std::ifstream{path};
    const auto text = std::string{std::istreambuf_iterator<char>{in}, {}};
    const auto read = parse_hosts(path, text);
    return !in ? path + " cannot be read" : read ? std::string{} : read.error().message;
  });
  add_source("--discover", node_source::kind::script, "Program that prints such lines; called every few seconds")
      ->excludes(hosts);
  refuse_removed(app, "--cluster", "name the nodes with --nodes, --hosts or --discover");
}

void add_nodes(CLI::App& app, cluster_config& cluster) {
  add_node_names(app, cluster);
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

std::uint64_t parse_count(const std::string& option, const std::string& text) {
  auto result = std::uint64_t{0};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), result);
  if (code != std::errc{} || end != text.data() + text.size() || result == 0)
    throw CLI::ValidationError{option, fmt::format("'{}' is not a number of at least 1", text)};
  return result;
}

CLI::Option* add_named_values(CLI::App& app, const std::string& option,
                              std::function<void(const std::string& name, const std::string& value)> take,
                              const std::string& description) {
  return app
      .add_option_function<std::vector<std::string>>(
          option,
          [option, take = std::move(take)](const std::vector<std::string>& all) {
            for (const auto& each : all) {
              const auto middle = each.find('=');
              if (middle == std::string::npos || middle == 0 || middle + 1 == each.size())
                throw CLI::ValidationError{option, fmt::format("'{}' is not NAME=VALUE", each)};
              take(each.substr(0, middle), each.substr(middle + 1));
            }
          },
          description)
      ->type_name("NAME=VALUE")
      ->expected(1, -1)
      ->delimiter(',');
}

void refuse_removed(CLI::App& app, const char* option, const char* instead) {
  app.add_option_function<std::vector<std::string>>(
         option,
         [option, instead](const std::vector<std::string>&) {
           throw CLI::ValidationError{option, fmt::format("this option has gone: {}", instead)};
         })
      ->expected(0, -1)
      ->group("");
}

void add_leases(CLI::App& app, scaling_config& scaling) {
  app.add_option_function<double>(
         "--wait",
         [&scaling](double seconds) {
           scaling.wait_for_resources = std::chrono::milliseconds{std::llround(std::clamp(seconds, 0.0, 1e9) * 1000)};
         },
         "Seconds to wait at the start for CPUs, GPUs and other resources that other runs have leased")
      ->default_str("0");
  app.add_option("--memory-per-worker", scaling.resources_per_worker.memory_bytes,
                 "Memory that each worker leases, such as 8GiB (counted, not enforced; default: none)")
      ->transform(CLI::AsSizeValue(false));
  add_named_values(
      app, "--resource-per-worker",
      [&scaling](const std::string& name, const std::string& value) {
        scaling.resources_per_worker.custom[name] = parse_count("--resource-per-worker", value);
      },
      "What each worker leases of what nodes have by caf-node --resource");
  add_named_values(
      app, "--node-label",
      [&scaling](const std::string& name, const std::string& value) { scaling.node_labels[name] = value; },
      "Only nodes with this label (caf-node --label) get workers");
}

void add_gpus(CLI::App& app, scaling_config& scaling) {
  app.add_flag("--use-gpu", scaling.use_gpu, "Train on GPUs: one for each worker");
  app.add_option("--gpus-per-worker", scaling.resources_per_worker.gpus,
                 "With --use-gpu: 0.25 lets four workers share a GPU")
      ->check(positive_number());
}

} // namespace troupe::apps

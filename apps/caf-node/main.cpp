#include "background_log.hpp"

#include <command_line.hpp>
#include <dashboard_option.hpp>
#include <layered_options.hpp>

#include <troupe/runtime/node_host.hpp>

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <optional>
#include <pthread.h>
#include <string>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

std::string now() {
  auto seconds = std::time(nullptr);
  auto parts = std::tm{};
  ::localtime_r(&seconds, &parts);
  char text[16];
  std::strftime(text, sizeof(text), "%H:%M:%S", &parts);
  return text;
}

void log_line(background_log& log, const std::string& line) {
  log.add(fmt::format("{} caf-node: {}", now(), line));
}

/// Returns when no worker is left, the grace period is over, or a second signal arrives.
void drain(troupe::runtime::node_host& node, std::chrono::seconds grace, const sigset_t& signals, background_log& log) {
  log_line(log,
           fmt::format("SIGTERM: ending within {} s, after runs have replaced or released the workers here (another "
                       "signal ends it at once)",
                       grace.count()));
  node.drain(grace);
  while (!node.drained()) {
    constexpr auto interval = timespec{0, 50'000'000};
    if (sigtimedwait(&signals, nullptr, &interval) > 0)
      return log_line(log, "second signal: ending at once");
  }
  log_line(log, "no worker is left, or the grace period is over: ending");
}

/// What the command line, the environment and a configuration file say.
struct settings {
  std::string listen = "127.0.0.1:0";
  std::vector<std::string> join;
  std::string metrics;
  std::chrono::seconds grace{25};
  troupe::runtime::node_options node;
  std::optional<troupe::apps::dashboard_option> dashboard;
  std::filesystem::path config;
  bool dump = false;
};

void add_options(CLI::App& app, settings& given) {
  app.add_option("--listen", given.listen, "Address to listen on, as HOST:PORT; port 0 chooses a free one")
      ->capture_default_str();
  app.add_option(
         "--join", given.join,
         "HOST:PORT of entry nodes of a cluster, separated by commas: any caf-nodes that others know. Drivers and "
         "tools get the list of members from them")
      ->delimiter(',');
  app.add_option("--cpus", given.node.cpus, "CPUs to offer (default: those this process may use)");
  app.add_option("--gpus", given.node.gpus,
                 "GPUs to offer (default: those of this host that CUDA_VISIBLE_DEVICES selects)");
  app.add_option("--memory", given.node.memory_bytes,
                 "Memory to offer, such as 64GiB (default: what this process may use)")
      ->transform(CLI::AsSizeValue(false));
  troupe::apps::add_named_values(
      app, "--resource",
      [&given](const std::string& name, const std::string& value) {
        given.node.custom[name] = troupe::apps::parse_count("--resource", value);
      },
      "Another resource to offer, and how much of it");
  troupe::apps::add_named_values(
      app, "--label", [&given](const std::string& name, const std::string& value) { given.node.labels[name] = value; },
      "A label, for runs that ask for nodes with certain ones");
  app.add_option("--program-dir", given.node.program_directory,
                 "Directory of the programs that may be started, by file name. Needed beyond loopback, unless "
                 "with --accept-programs, and with --insecure (default: the driver's path)")
      ->check(CLI::ExistingDirectory);
  app.add_option("--accept-programs", given.node.accept_programs,
                 "Take programs that this host lacks from drivers, and keep at most so many bytes of them; whoever has "
                 "a driver's key can then run any program here, as this node's user (default: it takes none)")
      ->type_name("SIZE")
      ->transform(CLI::AsSizeValue(false))
      ->expected(0, 1)
      ->default_str("8GiB");
  app.add_option("--state", given.node.state,
                 "Directory of the jobs that this node hosts, and of programs that it took (default: "
                 "~/.local/state/troupe/node-PORT)");
  app.add_option("--mirror", given.node.mirror,
                 "Directory in which this node keeps mirrors of runs: drivers name them node:HOST:PORT (default: it "
                 "keeps none)");
  app.add_option_function<unsigned>(
         "--take-over-after",
         [&given](unsigned seconds) { given.node.take_over_after = std::chrono::seconds{seconds}; },
         "Seconds of silence of another node after which this one takes over jobs that it keeps for it; six times as "
         "long where no third node agrees")
      ->default_str("10");
  app.add_option("--keys", given.node.keys, "Directory of keys (default: $TROUPE_KEYS, else ~/.config/troupe/keys)");
  app.add_flag(
      "--insecure", given.node.insecure,
      "Connect without TLS: anyone who can reach the port can run the programs of --program-dir, as its owner");
  troupe::apps::add_metrics_address(app, given.metrics);
  given.dashboard.emplace(app, "the cluster's nodes and the jobs that this node knows, with their runs");
  app.add_option_function<unsigned>(
         "--grace", [&given](unsigned seconds) { given.grace = std::chrono::seconds{seconds}; },
         "Seconds from SIGTERM to the end, during which runs replace this host's workers or continue without them")
      ->default_str("25");
  app.add_option("--config", given.config,
                 "File with lines 'key = value' for these options (default: /etc/troupe/caf-node.conf, else "
                 "~/.config/troupe/caf-node.conf, where there is one)");
  app.add_flag("--dump-config", given.dump, "Print the options that count, as such a file, and exit");
}

/// The file that counts where none is named; empty if there is none.
std::filesystem::path default_config() {
  auto code = std::error_code{};
  auto of_system = std::filesystem::path{"/etc/troupe/caf-node.conf"};
  if (std::filesystem::exists(of_system, code))
    return of_system;
  const auto* base = std::getenv("XDG_CONFIG_HOME");
  const auto* home = std::getenv("HOME");
  if ((base == nullptr || *base == '\0') && home == nullptr)
    return {};
  const auto directory =
      base != nullptr && *base != '\0' ? std::filesystem::path{base} : std::filesystem::path{home} / ".config";
  const auto of_user = directory / "troupe" / "caf-node.conf";
  return std::filesystem::exists(of_user, code) ? of_user : std::filesystem::path{};
}

/// Completes what the command line says. Returns an exit code if the program should end.
std::optional<int> complete(troupe::apps::layered_options& layers, settings& given) {
  auto taken = layers.take_environment([](const char* name) { return std::getenv(name); });
  const auto file = given.config.empty() ? default_config() : given.config;
  if (taken && !file.empty())
    taken = layers.take_file(file);
  if (!taken) {
    std::fprintf(stderr, "caf-node: %s\n", taken.error().message.c_str());
    return troupe::apps::exit_usage;
  }
  if (given.dump) {
    std::fputs(layers.dump().c_str(), stdout);
    return 0;
  }
  return std::nullopt;
}

/// Fails with the name of the option that has no address.
troupe::expected<void> parse_addresses(settings& given) {
  const auto parse = [](const char* option, const std::string& text) -> troupe::expected<troupe::endpoint> {
    auto where = troupe::parse_endpoint(text);
    if (!where)
      return troupe::fail(where.error().code, fmt::format("{}: {}", option, where.error().message));
    return where;
  };
  TROUPE_TRY(given.node.listen, parse("--listen", given.listen));
  if (!given.metrics.empty()) {
    TROUPE_TRY(given.node.metrics, parse("--metrics", given.metrics));
  }
  if (auto page = given.dashboard->options())
    given.node.dashboard = std::move(*page);
  else
    return troupe::fail(page.error().code, "--dashboard: " + page.error().message);
  for (const auto& each : given.join) {
    TROUPE_TRY(auto where, parse("--join", each));
    if (where.port == 0)
      return troupe::fail(troupe::errc::invalid_argument,
                          fmt::format("--join: {} has port 0: give the port that this caf-node printed", each));
    given.node.join.push_back(std::move(where));
  }
  return {};
}

} // namespace

int main(int argc, char** argv) {
  // Blocked before any thread exists, so that only the wait below receives them.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  CLI::App app{
      "Starts and watches the worker processes of training runs on this host. Start one on each host, with --join to\n"
      "make them a cluster, or pass their addresses to the trainer. When ready, it prints one line for scripts:\n"
      "caf-node: listening on HOST:PORT",
      "caf-node"};
  app.footer("Options may also come from the environment (TROUPE_NODE_LISTEN for --listen, and so on) and from a\n"
             "configuration file. The command line takes precedence over the environment, and that over the file.");
  settings given;
  add_options(app, given);
  if (auto code = troupe::apps::parse_command_line(app, argc, argv))
    return *code;
  troupe::apps::layered_options layers{app, "TROUPE_NODE", {"dump-config", "config"}};
  if (auto code = complete(layers, given))
    return *code;
  if (auto parsed = parse_addresses(given); !parsed) {
    std::fprintf(stderr, "caf-node: %s\n", parsed.error().message.c_str());
    return troupe::apps::exit_usage;
  }
  // Ends after the node, which uses it.
  background_log log{STDERR_FILENO};
  auto& options = given.node;
  options.log = [&log](const std::string& line) { log_line(log, line); };
  if (options.insecure)
    log_line(log,
             "warning: --insecure: anyone who can reach this port can run the programs of --program-dir as its owner");
  auto node = troupe::runtime::node_host::start(options);
  if (!node) {
    std::fprintf(stderr, "caf-node: %s\n", node.error().message.c_str());
    return 1;
  }
  std::printf("caf-node: listening on %s\n", troupe::to_string(node->address()).c_str());
  std::fflush(stdout);
  log_line(log, fmt::format("offers {} CPUs and {} GPUs; Ctrl-C ends it and its workers", node->offered().cpus,
                            static_cast<unsigned>(node->offered().gpus)));
  if (const auto metrics_at = node->metrics_address())
    log_line(log, fmt::format("metrics are at http://{}/metrics{}", troupe::to_string(*metrics_at),
                              options.metrics->host == "127.0.0.1" || options.metrics->host == "localhost"
                                  ? ""
                                  : ", for whoever reaches it"));
  if (const auto url = node->dashboard_url(); !url.empty())
    log_line(log, "the dashboard is at " + url);
  auto signal = 0;
  sigwait(&ends, &signal);
  if (signal == SIGTERM && given.grace.count() > 0)
    drain(*node, given.grace, ends, log);
  else
    log_line(log, signal == SIGINT ? "SIGINT: ending" : "SIGTERM: ending");
  return 0;
}

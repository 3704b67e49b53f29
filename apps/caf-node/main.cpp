#include "background_log.hpp"
#include "ready_notice.hpp"

#include <command_line.hpp>
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
  std::string metrics;
  std::chrono::seconds grace{25};
  troupe::runtime::node_options node;
  std::filesystem::path config;
  bool dump = false;
};

void add_options(CLI::App& app, settings& given) {
  app.add_option("--listen", given.listen, "Address to listen on, as HOST:PORT; port 0 chooses a free one")
      ->capture_default_str();
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
                 "Directory of the programs that may be started, by file name. Needed beyond loopback, and "
                 "with --insecure (default: the driver's path)")
      ->check(CLI::ExistingDirectory);
  app.add_option("--keys", given.node.keys, "Directory of keys (default: $TROUPE_KEYS, else ~/.config/troupe/keys)");
  app.add_flag(
      "--insecure", given.node.insecure,
      "Connect without TLS: anyone who can reach the port can run the programs of --program-dir, as its owner");
  troupe::apps::add_metrics_address(app, given.metrics);
  app.add_option_function<unsigned>(
         "--grace", [&given](unsigned seconds) { given.grace = std::chrono::seconds{seconds}; },
         "Seconds from SIGTERM to the end, during which runs replace this host's workers or continue without them")
      ->default_str("25");
  const auto removed = [&app](const char* name, const char* instead) {
    troupe::apps::refuse_removed(app, name, instead);
  };
  removed("--join",
          "drivers find nodes themselves: list this one in a host file, in the name's SRV records, or in --nodes");
  removed("--accept-programs", "put the program into --program-dir of each host");
  removed("--state", "nodes host no drivers any more: start them with systemd, Slurm or Kubernetes");
  removed("--take-over-after", "nodes host no drivers any more: systemd, Slurm and Kubernetes start them again");
  removed("--mirror",
          "nodes keep no mirrors any more: name a shared directory or rclone:REMOTE:PATH in the run's --mirror");
  removed("--dashboard", "`troupe dashboard DIRECTORY` serves the page about runs");
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

  CLI::App app{"Starts and watches the worker processes of training runs on this host. Start one on each host, and\n"
               "name them to the driver (--nodes, --hosts, --discover). When ready, it prints one line for scripts:\n"
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
  notify_ready();
  log_line(log, fmt::format("offers {} CPUs and {} GPUs; Ctrl-C ends it and its workers", node->offered().cpus,
                            static_cast<unsigned>(node->offered().gpus)));
  if (const auto metrics_at = node->metrics_address())
    log_line(log, fmt::format("metrics are at http://{}/metrics{}", troupe::to_string(*metrics_at),
                              options.metrics->host == "127.0.0.1" || options.metrics->host == "localhost"
                                  ? ""
                                  : ", for whoever reaches it"));
  auto signal = 0;
  sigwait(&ends, &signal);
  if (signal == SIGTERM && given.grace.count() > 0)
    drain(*node, given.grace, ends, log);
  else
    log_line(log, signal == SIGINT ? "SIGINT: ending" : "SIGTERM: ending");
  return 0;
}

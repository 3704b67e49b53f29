#include "background_log.hpp"

#include <command_line.hpp>

#include <troupe/runtime/node_host.hpp>

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <pthread.h>
#include <string>
#include <unistd.h>

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
      "Starts and watches the worker processes of training runs on this host. Start one on each host and pass their\n"
      "addresses to the trainer. When ready, it prints one line for scripts: caf-node: listening on HOST:PORT",
      "caf-node"};
  troupe::runtime::node_options options;
  auto listen = std::string{"127.0.0.1:0"};
  app.add_option("--listen", listen, "Address to listen on, as HOST:PORT; port 0 chooses a free one")
      ->capture_default_str();
  app.add_option("--cpus", options.cpus, "CPUs to offer (default: those this process may use)");
  app.add_option("--gpus", options.gpus,
                 "GPUs to offer (default: those of this host that CUDA_VISIBLE_DEVICES selects)");
  app.add_option("--memory", options.memory_bytes,
                 "Memory to offer, such as 64GiB (default: what this process may use)")
      ->transform(CLI::AsSizeValue(false));
  troupe::apps::add_named_values(
      app, "--resource",
      [&options](const std::string& name, const std::string& value) {
        options.custom[name] = troupe::apps::parse_count("--resource", value);
      },
      "Another resource to offer, and how much of it");
  troupe::apps::add_named_values(
      app, "--label", [&options](const std::string& name, const std::string& value) { options.labels[name] = value; },
      "A label, for runs that ask for nodes with certain ones");
  app.add_option("--program-dir", options.program_directory,
                 "Directory of the programs that may be started, by file name. Needed beyond loopback and with "
                 "--insecure (default: the driver's path)")
      ->check(CLI::ExistingDirectory);
  app.add_option("--keys", options.keys, "Directory of keys (default: $TROUPE_KEYS, else ~/.config/troupe/keys)");
  app.add_flag(
      "--insecure", options.insecure,
      "Connect without TLS: anyone who can reach the port can run the programs of --program-dir, as its owner");
  auto metrics = std::string{};
  troupe::apps::add_metrics_address(app, metrics);
  auto grace = std::chrono::seconds{25};
  app.add_option_function<unsigned>(
         "--grace", [&grace](unsigned seconds) { grace = std::chrono::seconds{seconds}; },
         "Seconds from SIGTERM to the end, during which runs replace this host's workers or continue without them")
      ->default_str("25");
  if (auto code = troupe::apps::parse_command_line(app, argc, argv))
    return *code;

  auto where = troupe::parse_endpoint(listen);
  if (!where) {
    std::fprintf(stderr, "caf-node: --listen: %s\n", where.error().message.c_str());
    return troupe::apps::exit_usage;
  }
  options.listen = *where;
  if (!metrics.empty())
    options.metrics = troupe::value_or_throw(troupe::parse_endpoint(metrics));
  // Ends after the node, which uses it.
  background_log log{STDERR_FILENO};
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
  auto signal = 0;
  sigwait(&ends, &signal);
  if (signal == SIGTERM && grace.count() > 0)
    drain(*node, grace, ends, log);
  else
    log_line(log, signal == SIGINT ? "SIGINT: ending" : "SIGTERM: ending");
  return 0;
}

#include <command_line.hpp>

#include <troupe/runtime/node_host.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <pthread.h>
#include <string>

namespace {

std::string now() {
  auto seconds = std::time(nullptr);
  auto parts = std::tm{};
  ::localtime_r(&seconds, &parts);
  char text[16];
  std::strftime(text, sizeof(text), "%H:%M:%S", &parts);
  return text;
}

void log_line(const std::string& line) {
  std::fprintf(stderr, "%s caf-node: %s\n", now().c_str(), line.c_str());
}

/// Returns when no worker is left, the grace period is over, or a second signal comes.
void drain(troupe::runtime::node_host& node, std::chrono::seconds grace, const sigset_t& signals) {
  log_line("asked to end: its workers are replaced or let go within " + std::to_string(grace.count()) +
           " s (once more: at once)");
  node.drain(grace);
  while (!node.drained()) {
    constexpr auto look = timespec{0, 50'000'000};
    if (sigtimedwait(&signals, nullptr, &look) > 0)
      return log_line("asked again: ending at once");
  }
  log_line("no worker is left, or the time is over: ending");
}

} // namespace

int main(int argc, char** argv) {
  // Before any thread exists: only the wait below takes them.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  CLI::App app{
      "Starts and watches the worker processes of training runs on this host. One for each host; a trainer is given\n"
      "their addresses. Prints one line for scripts when it is ready: caf-node: listening on HOST:PORT",
      "caf-node"};
  troupe::runtime::node_options options;
  auto listen = std::string{"127.0.0.1:0"};
  app.add_option("--listen", listen, "Address to listen on, as HOST:PORT; port 0 takes a free one")
      ->capture_default_str();
  app.add_option("--cpus", options.cpus, "CPUs to offer (default: those this process may use)");
  app.add_option("--gpus", options.gpus,
                 "GPUs to offer (default: those of this host that CUDA_VISIBLE_DEVICES leaves)");
  app.add_option("--program-dir", options.program_directory,
                 "Take programs from this directory, by file name (default: from the driver's path)")
      ->check(CLI::ExistingDirectory);
  app.add_option("--keys", options.keys, "Directory of keys (default: $TROUPE_KEYS, else ~/.config/troupe/keys)");
  app.add_flag("--insecure", options.insecure,
               "Connect without TLS: whoever reaches the port can run code as its owner");
  auto grace = std::chrono::seconds{25};
  app.add_option_function<unsigned>(
         "--grace", [&grace](unsigned seconds) { grace = std::chrono::seconds{seconds}; },
         "Seconds between SIGTERM and the end: runs replace the workers of this host, or go on without them")
      ->default_str("25");
  if (auto code = troupe::apps::parse_command_line(app, argc, argv))
    return *code;

  auto where = troupe::parse_endpoint(listen);
  if (!where) {
    std::fprintf(stderr, "caf-node: --listen: %s\n", where.error().message.c_str());
    return troupe::apps::exit_usage;
  }
  options.listen = *where;
  options.log = log_line;
  if (options.insecure)
    log_line("warning: insecure: whoever reaches this port can run code as its owner");
  auto node = troupe::runtime::node_host::start(options);
  if (!node) {
    std::fprintf(stderr, "caf-node: %s\n", node.error().message.c_str());
    return 1;
  }
  std::printf("caf-node: listening on %s\n", troupe::to_string(node->address()).c_str());
  std::fflush(stdout);
  log_line("offers " + std::to_string(node->offered().cpus) + " CPUs and " +
           std::to_string(static_cast<unsigned>(node->offered().gpus)) + " GPUs; Ctrl-C ends it and its workers");
  auto signal = 0;
  sigwait(&ends, &signal);
  if (signal == SIGTERM && grace.count() > 0)
    drain(*node, grace, ends);
  else
    log_line(signal == SIGINT ? "interrupted: ending" : "asked to end: ending");
  return 0;
}

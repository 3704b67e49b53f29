#include <serve/command.hpp>

#include <command_line.hpp>

#include <troupe/error.hpp>
#include <troupe/onnxruntime.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/temporary_directory.hpp>
#include <troupe/serving/server.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace serve {

using namespace troupe;
namespace fs = std::filesystem;

namespace {

constexpr auto token_variable = "TROUPE_SERVE_TOKEN";

struct arguments {
  std::string model;
  std::string token_file;
  bool wait = false;
  double poll_seconds = 1;
  double grace_seconds = 30;
  double max_delay_ms = 0;
  double receive_seconds = 30;
  double predict_seconds = 30;
  double idle_seconds = 60;
  std::uint64_t max_body_mib = 16;
  serving::server_config server = {};
  predict::model_files files = {};
};

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds{static_cast<std::int64_t>(seconds * 1000)};
}

void add_options(CLI::App& cli, arguments& given) {
  auto& server = given.server;
  const auto seconds = CLI::Range(0.001, 86'400.0);
  cli.add_option("MODEL", given.model,
                 "A run's directory, whose newest checkpoint is followed; a checkpoint; or an ONNX file")
      ->required();
  cli.add_option("--host", server.listen.host, "Where to listen; beyond this machine a token is required")
      ->capture_default_str();
  cli.add_option("--port", server.listen.port, "The port; 0 for a free one")->capture_default_str();
  cli.add_option("--name", server.name, "The model's name in responses (default: that of the run or file)");
  cli.add_option("--replicas", server.replicas, "Copies of the model that predict at the same time")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  cli.add_option("--max-batch", server.batching.max_rows, "The most rows that are predicted at once; 1: no batching")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  cli.add_option("--max-delay", given.max_delay_ms,
                 "Milliseconds that a free replica waits for a batch to fill; 0: it takes what is there")
      ->check(CLI::Range(0.0, 60'000.0))
      ->capture_default_str();
  cli.add_option("--queue-rows", server.batching.max_queued_rows, "The most rows that wait; more get 503")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  cli.add_option("--request-rows", server.limits.max_request_rows, "The most rows of a request; more get 413")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  cli.add_option("--max-connections", server.limits.max_connections, "The most open connections")
      ->check(CLI::Range(1, 16'384))
      ->capture_default_str();
  cli.add_option("--max-body", given.max_body_mib, "The most MiB of a request's body; more get 413")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  cli.add_option("--rate", server.limits.requests_per_second,
                 "The most requests a second from one address; more get 429 (default: no limit)")
      ->check(apps::positive_number());
  cli.add_option("--burst", server.limits.burst, "Requests of one address that may come at once (default: as --rate)")
      ->check(CLI::Range(1.0, 1e9));
  cli.add_option("--receive-timeout", given.receive_seconds, "Seconds that a request may take to arrive")
      ->check(seconds)
      ->capture_default_str();
  cli.add_option("--predict-timeout", given.predict_seconds, "Seconds after which a prediction is given up, with 504")
      ->check(seconds)
      ->capture_default_str();
  cli.add_option("--idle-timeout", given.idle_seconds, "Seconds that a connection may wait without a request")
      ->check(seconds)
      ->capture_default_str();
  cli.add_option("--poll", given.poll_seconds,
                 "Seconds between two looks for a newer checkpoint; 0: only on SIGHUP and POST /v1/reload")
      ->check(CLI::Range(0.0, 86'400.0))
      ->capture_default_str();
  cli.add_flag("--wait", given.wait, "MODEL is a run that may not exist yet: wait for its first checkpoint");
  cli.add_option("--grace", given.grace_seconds, "Seconds that requests may take to finish after SIGTERM")
      ->check(CLI::Range(0.0, 86'400.0))
      ->capture_default_str();
  cli.add_option("--token-file", given.token_file,
                 fmt::format("A file with the token that clients must send (default: ${})", token_variable));
  cli.add_option("--certificate", server.listen.certificate, "PEM file of the certificate chain, for HTTPS");
  cli.add_option("--key", server.listen.key, "PEM file of its key");
  cli.add_option("--lightgbm-library", given.files.lightgbm_library, "The path of lib_lightgbm.so");
  cli.add_option("--onnxruntime-library", given.files.onnxruntime_library, "The path of libonnxruntime.so");
  cli.add_option("--keras-model", given.files.keras_model, "For a checkpoint of keras: the exported model's directory");
  cli.footer("Exit codes: 0 stopped by a signal, 1 failed, or requests were left after the grace, 2 wrong usage.");
}

std::string read_token(const std::string& file) {
  if (file.empty()) {
    const auto* value = std::getenv(token_variable);
    return value == nullptr ? std::string{} : value;
  }
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0)
    throw exception{system_error(file)};
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    throw exception{errc::not_authenticated, fmt::format("{} may be used by other users: chmod 600 {}", file, file)};
  auto in = std::ifstream{file, std::ios::binary};
  auto token = std::string{std::istreambuf_iterator<char>{in}, {}};
  while (!token.empty() && std::isspace(static_cast<unsigned char>(token.back())) != 0)
    token.pop_back();
  if (token.empty())
    throw exception{errc::invalid_argument, fmt::format("{} has no token", file)};
  return token;
}

/// The newest checkpoint that a path means now, unread.
std::optional<fs::path> checkpoint_at(const fs::path& path) {
  auto code = std::error_code{};
  for (const auto& directory : {path / "checkpoints", path})
    if (fs::is_directory(directory, code))
      if (const auto all = serialization::list_checkpoints(directory); all && !all->empty())
        return all->back().path;
  return fs::is_directory(path, code) ? std::optional{path} : std::nullopt;
}

/// Becomes another program of the same directory. Returns if that fails.
void execute(const std::string& name, char** argv) {
  auto code = std::error_code{};
  const auto path = fs::read_symlink("/proc/self/exe", code).parent_path() / name;
  ::execv(path.c_str(), argv);
  throw exception{errc::unsatisfiable,
                  fmt::format("this model is served by {}, which cannot be started: {}: it is built where LibTorch is",
                              path.string(), std::strerror(errno))};
}

void become_program_for(const program_kind& program, const fs::path& path, char** argv) {
  const auto newest = checkpoint_at(path);
  if (!newest)
    return;
  const auto source = serialization::checkpoint::open(*newest);
  const auto kind = source ? predict::kind_of(*source) : fail(source.error());
  if (kind)
    if (const auto other = program.other_program(*kind))
      execute(*other, argv);
}

fs::path make_scratch() {
  auto name = (fs::temp_directory_path() / "troupe-serve-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    throw exception{system_error(name)};
  return name;
}

std::string name_of(const fs::path& path) {
  auto code = std::error_code{};
  const auto real = fs::weakly_canonical(path, code);
  const auto& last = real.filename() == "checkpoints" ? real.parent_path() : real;
  return last.stem().string().empty() ? "model" : last.stem().string();
}

serving::checkpoint_models models_of(const program_kind& program, const arguments& given, const fs::path& path) {
  serving::checkpoint_models result;
  result.path = path;
  result.poll_every = milliseconds_of(given.poll_seconds);
  result.absent = given.wait ? serving::absent_run::wait : serving::absent_run::refuse;
  result.load = [&program,
                 files = given.files](const serialization::checkpoint& source) -> expected<serving::served_model> {
    auto model = program.load(source, files);
    return serving::served_model{std::move(model.predictor), std::move(model.inputs)};
  };
  return result;
}

/// Serves until a signal comes. The signals are blocked.
int serve_until_stopped(serving::server& server, const sigset_t& signals, std::chrono::milliseconds grace,
                        const char* name) {
  std::thread reloading;
  auto signal = 0;
  for (;;) {
    ::sigwait(&signals, &signal);
    if (signal != SIGHUP)
      break;
    if (reloading.joinable())
      reloading.join();
    reloading = std::thread{[&server, name] {
      if (const auto done = server.reload(); !done)
        std::fprintf(stderr, "%s: %s\n", name, done.error().message.c_str());
      else if (!done->changed)
        std::fprintf(stderr, "%s: there is nothing newer than step %llu\n", name,
                     static_cast<unsigned long long>(done->step));
    }};
  }
  // A second signal ends the process.
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  std::fprintf(stderr, "%s: stopping; a second signal does not wait for requests\n", name);
  const auto is_drained = server.stop(grace);
  if (reloading.joinable())
    reloading.join();
  if (!is_drained)
    std::fprintf(stderr, "%s: requests were left after %lld s\n", name,
                 static_cast<long long>(std::chrono::duration_cast<std::chrono::seconds>(grace).count()));
  return is_drained ? 0 : 1;
}

int serve_model(const program_kind& program, arguments given, char** argv) {
  auto path = fs::path{given.model};
  std::optional<serialization::temporary_directory> imported;
  if (path.extension() == ".onnx") {
    imported.emplace(make_scratch());
    path = value_or_throw(onnxruntime::store_model(path, imported->path()));
  } else {
    become_program_for(program, path, argv);
  }
  if (given.server.name.empty())
    given.server.name = name_of(given.model);
  given.server.listen.token = read_token(given.token_file);
  given.server.notice = [name = program.name](std::string_view line) {
    std::fprintf(stderr, "%s: %.*s\n", name, static_cast<int>(line.size()), line.data());
  };
  // Before there are threads, which inherit it.
  sigset_t signals;
  ::sigemptyset(&signals);
  for (auto each : {SIGINT, SIGTERM, SIGHUP})
    ::sigaddset(&signals, each);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  auto server = serving::server{given.server, models_of(program, given, path)};
  value_or_throw(server.start());
  // The replicas have read it.
  imported.reset();
  std::printf("%s: listening on %s\n", program.name, server.url().c_str());
  std::fflush(stdout);
  return serve_until_stopped(server, signals, milliseconds_of(given.grace_seconds), program.name);
}

} // namespace

int run(const program_kind& program, int argc, char** argv) {
  arguments given;
  given.server.name.clear();
  CLI::App cli{program.description, program.name};
  add_options(cli, given);
  if (auto code = apps::parse_command_line(cli, argc, argv))
    return *code;
  given.server.batching.max_delay = std::chrono::microseconds{static_cast<std::int64_t>(given.max_delay_ms * 1000)};
  given.server.limits.receive_timeout = milliseconds_of(given.receive_seconds);
  given.server.limits.predict_timeout = milliseconds_of(given.predict_seconds);
  given.server.limits.idle_timeout = milliseconds_of(given.idle_seconds);
  given.server.limits.max_body_bytes = given.max_body_mib << 20;
  given.server.limits.max_total_body_bytes =
      std::max(given.server.limits.max_total_body_bytes, given.server.limits.max_body_bytes);
  try {
    return serve_model(program, std::move(given), argv);
  } catch (const exception& x) {
    std::fprintf(stderr, "%s: %s\n", program.name, x.what());
    const auto is_usage = x.code() == errc::invalid_argument || x.code() == errc::not_found;
    return is_usage ? apps::exit_usage : 1;
  } catch (const std::exception& x) {
    std::fprintf(stderr, "%s: %s\n", program.name, x.what());
    return 1;
  }
}

} // namespace serve

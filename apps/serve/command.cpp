#include <serve/command.hpp>

#include <command_line.hpp>
#include <execute_beside.hpp>
#include <serve/process_options.hpp>
#include <serve/signal_watch.hpp>

#include <troupe/error.hpp>
#include <troupe/onnxruntime.hpp>
#include <troupe/serialization/files/private_file.hpp>
#include <troupe/serialization/files/temporary_directory.hpp>
#include <troupe/serving/model_path.hpp>
#include <troupe/serving/remote_replicas.hpp>
#include <troupe/serving/server.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
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
  std::optional<serving::remote_config> processes = {};
};

/// Never 0 for a time that is not.
std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>{seconds});
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
  cli.add_option("--source-connections", server.limits.max_source_connections,
                 "The most of one address (default: half of them; on loopback no limit)")
      ->check(CLI::Range(1, 16'384));
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

std::string trimmed(const std::string& text) {
  constexpr auto space = " \t\r\n";
  const auto begin = text.find_first_not_of(space);
  return begin == std::string::npos ? std::string{} : text.substr(begin, text.find_last_not_of(space) - begin + 1);
}

std::string read_token(const std::string& file) {
  if (file.empty()) {
    const auto* value = std::getenv(token_variable);
    return value == nullptr ? std::string{} : trimmed(value);
  }
  value_or_throw(serialization::check_private(file));
  auto in = std::ifstream{file, std::ios::binary};
  const auto token = trimmed({std::istreambuf_iterator<char>{in}, {}});
  if (token.empty())
    throw exception{errc::invalid_argument, fmt::format("{} has no token", file)};
  return token;
}

/// Becomes the wider program if that serves the model and this one does not. While the model is not there, the wider
/// one waits for it, where it is built.
void become_program_for(const program_kind& program, const fs::path& path, serving::absent_run absent, char** argv) {
  if (program.wider_program.empty())
    return;
  const auto wider = apps::program_beside(program.wider_program);
  const auto newest = value_or_throw(serving::newest_checkpoint(path, absent));
  if (!newest) {
    if (::access(wider.c_str(), X_OK) == 0)
      throw exception{apps::execute(wider, argv)};
    return;
  }
  // What is wrong with it is said when it is loaded.
  const auto source = serialization::checkpoint::open(*newest);
  const auto kind = source ? predict::kind_of(*source) : fail(source.error());
  if (kind && !program.serves(*kind))
    throw exception{errc::unsatisfiable,
                    fmt::format("this model needs another program, which is built where LibTorch is: {}",
                                apps::execute(wider, argv).message)};
}

serving::absent_run absent_of(const arguments& given) {
  return given.wait ? serving::absent_run::wait : serving::absent_run::refuse;
}

std::string name_of(const fs::path& path) {
  auto code = std::error_code{};
  const auto real = fs::weakly_canonical(path, code);
  const auto& last = real.filename() == "checkpoints" ? real.parent_path() : real;
  return last.stem().string().empty() ? "model" : last.stem().string();
}

using load_function = std::function<expected<serving::served_model>(const serialization::checkpoint& source)>;

load_function load_here(const program_kind& program, const predict::model_files& files) {
  return [&program, files](const serialization::checkpoint& source) -> expected<serving::served_model> {
    return program.load(source, files);
  };
}

serving::checkpoint_models models_of(const arguments& given, const fs::path& path, load_function load) {
  serving::checkpoint_models result;
  result.path = path;
  result.poll_every = milliseconds_of(given.poll_seconds);
  result.absent = absent_of(given);
  result.load = std::move(load);
  return result;
}

nlohmann::json json_of(const predict::model_files& files) {
  return {{"lightgbm_library", files.lightgbm_library.string()},
          {"onnxruntime_library", files.onnxruntime_library.string()},
          {"keras_model", files.keras_model.string()}};
}

predict::model_files files_of(const nlohmann::json& x) {
  predict::model_files result;
  result.lightgbm_library = x.at("lightgbm_library").get<std::string>();
  result.onnxruntime_library = x.at("onnxruntime_library").get<std::string>();
  result.keras_model = x.at("keras_model").get<std::string>();
  return result;
}

function replica_of(const program_kind& program) {
  return serving::replica_function(
      "replica",
      [load = program.load](const serialization::checkpoint& source, const nlohmann::json& options)
          -> expected<serving::served_model> { return load(source, files_of(options)); });
}

/// What signals act upon: first a model that is imported, then the server. Thread-safe.
class session {
 public:
  session(const char* name, std::chrono::milliseconds grace) : name_(name), grace_(grace) {}

  void import_into(fs::path scratch) {
    const auto lock = std::lock_guard{mutex_};
    scratch_ = std::move(scratch);
  }

  /// Both outlive the signals.
  void serve(serving::server& server, serving::remote_replicas* processes) {
    const auto lock = std::lock_guard{mutex_};
    server_ = &server;
    processes_ = processes;
  }

  void reload() {
    const auto lock = std::lock_guard{mutex_};
    if (server_ != nullptr)
      server_->request_reload();
  }

  void stop() {
    std::fprintf(stderr, "%s: stopping; a second signal does not wait for requests\n", name_);
    const auto lock = std::lock_guard{mutex_};
    if (server_ == nullptr) {
      auto ignored = std::error_code{};
      if (!scratch_.empty())
        fs::remove_all(scratch_, ignored);
      ::_exit(0);
    }
    is_drained_ = server_->stop(grace_);
    if (processes_ != nullptr)
      processes_->stop();
    if (!is_drained_)
      std::fprintf(stderr, "%s: requests were left after %lld s\n", name_,
                   static_cast<long long>(std::chrono::duration_cast<std::chrono::seconds>(grace_).count()));
  }

  [[nodiscard]] bool is_drained() {
    const auto lock = std::lock_guard{mutex_};
    return is_drained_;
  }

 private:
  const char* name_;
  std::chrono::milliseconds grace_;
  std::mutex mutex_;
  fs::path scratch_;
  serving::server* server_ = nullptr;
  serving::remote_replicas* processes_ = nullptr;
  bool is_drained_ = true;
};

/// Returns only with an exception.
void serve_model(const program_kind& program, arguments given, char** argv) {
  auto path = fs::path{given.model};
  const auto is_file = path.extension() == ".onnx";
  if (!is_file)
    become_program_for(program, path, absent_of(given), argv);
  if (given.server.name.empty())
    given.server.name = name_of(given.model);
  given.server.listen.token = read_token(given.token_file);
  given.server.notice = [name = program.name](std::string_view line) {
    std::fprintf(stderr, "%s: %.*s\n", name, static_cast<int>(line.size()), line.data());
  };
  auto here = session{program.name, milliseconds_of(given.grace_seconds)};
  std::optional<serving::server> server;
  std::optional<serving::remote_replicas> processes;
  auto signals = signal_watch{{[&] { here.reload(); }, [&](int) { here.stop(); }}};
  std::optional<serialization::temporary_directory> imported;
  if (is_file) {
    imported.emplace(value_or_throw(serialization::temporary_directory::make("troupe-serve")));
    here.import_into(imported->path());
    path = value_or_throw(onnxruntime::store_model(path, imported->path()));
  }
  if (given.processes) {
    auto config = *given.processes;
    config.replicas = given.server.replicas;
    config.options = json_of(given.files);
    config.notice = given.server.notice;
    processes.emplace(replica_of(program), std::move(config));
  }
  here.serve(server.emplace(given.server,
                            models_of(given, path, processes ? processes->load() : load_here(program, given.files))),
             processes ? &*processes : nullptr);
  const auto started = [&]() -> expected<void> {
    if (processes)
      TROUPE_TRY(processes->start());
    return server->start();
  }();
  if (!started && started.error().code != errc::stopped)
    throw exception{started.error()};
  // Threads have read it by now; a process that starts again does so later.
  if (!processes)
    imported.reset();
  if (started) {
    std::printf("%s: listening on %s\n", program.name, server->url().c_str());
    std::fflush(stdout);
  }
  signals.wait();
  imported.reset();
  // Models that are being loaded, or predict, cannot be interrupted: they end with the process.
  ::_exit(here.is_drained() ? 0 : 1);
}

} // namespace

int run(const program_kind& program, int argc, char** argv) {
  // Does not return in the process of a replica.
  run_if_worker({replica_of(program)});
  arguments given;
  given.server.name.clear();
  CLI::App cli{program.description, program.name};
  add_options(cli, given);
  const auto processes = process_options{cli};
  if (auto code = apps::parse_command_line(cli, argc, argv))
    return *code;
  given.processes = processes.given();
  given.server.batching.max_delay = std::chrono::microseconds{static_cast<std::int64_t>(given.max_delay_ms * 1000)};
  given.server.limits.receive_timeout = milliseconds_of(given.receive_seconds);
  given.server.limits.predict_timeout = milliseconds_of(given.predict_seconds);
  given.server.limits.idle_timeout = milliseconds_of(given.idle_seconds);
  given.server.limits.max_body_bytes = given.max_body_mib << 20;
  // One request can be held whatever its form: its body, its rows and its response.
  given.server.limits.max_total_body_bytes =
      std::max(given.server.limits.max_total_body_bytes, 4 * given.server.limits.max_body_bytes);
  if (given.server.batching.max_queued_rows < given.server.limits.max_request_rows) {
    std::fprintf(stderr, "%s: --queue-rows must be at least --request-rows\n", program.name);
    return apps::exit_usage;
  }
  try {
    serve_model(program, std::move(given), argv);
    return 1;
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

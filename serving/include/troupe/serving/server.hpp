#pragma once

#include <troupe/error.hpp>
#include <troupe/serving/served_model.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

/// Predictions over HTTP: `docs/serving.md` describes the requests.
namespace troupe::serving {

/// Where a server listens, and who may use it.
struct listen_config {
  /// An address or a name. Beyond loopback a token is required.
  std::string host = "127.0.0.1";
  /// 0: any free port.
  std::uint16_t port = 8080;
  /// What clients send as `Authorization: Bearer TOKEN`, at least 16 characters; empty for none.
  std::string token = {};
  /// PEM files of the server's certificate chain and key, for HTTPS; both or neither.
  std::filesystem::path certificate = {};
  std::filesystem::path key = {};
};

/// How requests are joined to batches.
struct batch_config {
  /// The most rows that a predictor gets at once. A larger request is predicted in parts.
  std::uint64_t max_rows = 32;
  /// How long a free replica waits for a batch to fill. With 0 it takes what is there: while all replicas are busy,
  /// requests gather by themselves.
  std::chrono::microseconds max_delay{0};
  /// The most rows that wait; a request that exceeds it is answered with 503.
  std::uint64_t max_queued_rows = 1024;
};

/// What one client may take.
struct limits_config {
  /// Open connections, each with a thread. One more takes the place of one without a request, or is answered with 503
  /// and closed.
  std::size_t max_connections = 256;
  /// Of one source (as below). Unless set: half of `max_connections`, and no limit on loopback. Clients behind a proxy
  /// are one source.
  std::optional<std::size_t> max_source_connections = {};
  std::uint64_t max_body_bytes = std::uint64_t{16} << 20;
  /// Of all requests that are being received or answered: their bodies, rows and responses.
  std::uint64_t max_total_body_bytes = std::uint64_t{256} << 20;
  /// Rows in one request.
  std::uint64_t max_request_rows = 1024;
  /// Requests a second of one source (an IPv4 address, or the /64 of an IPv6 one), and how many may come at once; 0 for
  /// no limit.
  double requests_per_second = 0;
  double burst = 0;
  /// From the first byte of a request to its last.
  std::chrono::milliseconds receive_timeout{30'000};
  /// From there to the end of its head, if that is shorter; also for TLS's handshake.
  std::chrono::milliseconds head_timeout{10'000};
  /// From the last byte of a request to its prediction.
  std::chrono::milliseconds predict_timeout{30'000};
  /// From a request for a reload to its answer; the reload goes on.
  std::chrono::milliseconds reload_timeout{300'000};
  /// How long a client may take for a response.
  std::chrono::milliseconds send_timeout{30'000};
  /// How long an open connection may wait without a request.
  std::chrono::milliseconds idle_timeout{60'000};
};

struct server_config {
  /// The model's name in responses.
  std::string name = "model";
  listen_config listen = {};
  batch_config batching = {};
  limits_config limits = {};
  /// Predictors that work at the same time, each with a thread and a copy of the model.
  std::uint32_t replicas = 1;
  /// Gets what an operator should know, one line each, from any thread. When empty, it goes to standard error.
  std::function<void(std::string_view line)> notice = {};
};

/// The outcome of a reload.
struct reload_report {
  /// Whether another model is served than before.
  bool changed = false;
  /// Of the model that is served now; a model of the program has step 0 and no checkpoint.
  std::uint64_t step = 0;
  std::filesystem::path checkpoint = {};
};

/// Serves one model by HTTP. Thread-safe.
///
///     auto server = serving::server{{.listen = {.port = 8080}}, serving::checkpoint_models{"runs/latest", load}};
///     value_or_throw(server.start());
class server {
 public:
  server(server_config config, model_origin origin);
  /// Stops without a grace, and waits for models that are being loaded or predict: these cannot be interrupted.
  ~server();
  server(const server&) = delete;
  server& operator=(const server&) = delete;

  /// Loads the model and listens. Returns once requests are answered; a run that has no checkpoint yet is waited for in
  /// the background, and until then the server is not ready. Once. Fails with `errc::invalid_argument` for a
  /// configuration that cannot be, `errc::already_exists` for a port that is taken, `errc::not_authenticated` for a
  /// certificate that cannot be used, `errc::stopped` if `stop` is called meanwhile, and as loading the model does.
  [[nodiscard]] expected<void> start();

  /// The port that it listens on; 0 before `start`.
  [[nodiscard]] std::uint16_t port() const noexcept;

  /// "http://127.0.0.1:8080".
  [[nodiscard]] std::string url() const;

  /// Serves the newest usable checkpoint, even if it has a smaller step than the one served, after all its replicas
  /// have loaded it. Requests meanwhile are answered by the model before. Calls that come while another is under way
  /// share the next. Fails as loading does, and the model before is kept; with `errc::stopped` once the server stops.
  [[nodiscard]] expected<reload_report> reload();

  /// The same in the background: the outcome is told by `server_config::notice`.
  void request_reload();

  /// Has a newer checkpoint looked for at once, in the background.
  void check_for_newer();

  /// Closes the port, answers all requests that have been received, and ends what is left after `grace`. Returns
  /// whether nothing was, without waiting for a model that is being loaded or predicts. Idempotent.
  bool stop(std::chrono::milliseconds grace);

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::serving

#include <troupe/serving/server.hpp>

#include "decisions/access.hpp"
#include "decisions/rate_limiter.hpp"
#include "decisions/rows.hpp"
#include "dispatcher.hpp"
#include "http/http_server.hpp"
#include "http/request_handler.hpp"
#include "metrics.hpp"
#include "model_keeper.hpp"

#include <troupe/runtime/keys.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace troupe::serving {

namespace {

constexpr auto npy_type = "application/x-npy";
constexpr auto metrics_type = "text/plain; version=0.0.4; charset=utf-8";
constexpr auto no_model_text = "there is no model yet: the run has no checkpoint";
constexpr std::size_t min_token_bytes = 16;
constexpr int max_reload_waiters = 8;

/// What can be asked for.
enum class resource : std::uint8_t { predict, model, reload, health, readiness, metrics };

struct route {
  std::string_view path;
  std::string_view method;
  resource what;
};

constexpr std::array<route, 6> routes{{{"/v1/predict", "POST", resource::predict},
                                       {"/v1/model", "GET", resource::model},
                                       {"/v1/reload", "POST", resource::reload},
                                       {"/healthz", "GET", resource::health},
                                       {"/readyz", "GET", resource::readiness},
                                       {"/metrics", "GET", resource::metrics}}};

const route* find_route(std::string_view path) {
  const auto found = std::ranges::find(routes, path, &route::path);
  return found == routes.end() ? nullptr : &*found;
}

std::string dump(const nlohmann::json& what) {
  return what.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// The response for a prediction that the predictor refused, or failed at.
response response_of(const error& reason) {
  const auto is_of_rows =
      reason.code == errc::invalid_argument || reason.code == errc::mismatch || reason.code == errc::not_found;
  return is_of_rows ? make_error(422, "the model cannot predict for these rows: " + reason.message)
                    : make_error(500, "the prediction failed: " + reason.message);
}

response response_of(unanswered reason) {
  switch (reason) {
  case unanswered::queue_full:
    return make_retry(503, "as many rows wait as may: try again, or ask for more replicas");
  case unanswered::late:
    return make_error(504, "the prediction did not come in time: try again, or ask for more replicas");
  case unanswered::stopped:
    return make_retry(503, "the server stops: send the request to another one");
  }
  return make_error(500, "a prediction without an outcome: report a bug");
}

/// The response for a reload that failed.
response response_of_reload(const error& reason) {
  if (reason.code == errc::stopped)
    return make_retry(503, reason.message);
  if (reason.code == errc::timed_out)
    return make_error(504, reason.message);
  constexpr std::array of_checkpoint{errc::damaged, errc::mismatch, errc::unsupported_version, errc::invalid_argument,
                                     errc::not_found};
  if (std::ranges::find(of_checkpoint, reason.code) != of_checkpoint.end())
    return make_error(409, "the newest checkpoint cannot be served: " + reason.message);
  return make_error(500, "the reload failed: " + reason.message);
}

bool is_media_type(std::string_view value, std::string_view type) {
  return value.substr(0, value.find(';')) == type;
}

/// Whether the body may be JSON or NPY by its type. What curl sends without being told is a form.
bool is_supported_type(std::string_view value) {
  return value.empty() || is_media_type(value, "application/json") || is_media_type(value, npy_type) ||
         is_media_type(value, "application/octet-stream") || is_media_type(value, "application/x-www-form-urlencoded");
}

nlohmann::json json_of(const data::column_spec& column) {
  auto result = nlohmann::json{{"name", column.name}, {"type", to_string(column.type)}, {"shape", column.shape}};
  if (column.categories != nullptr)
    result["categories"] = *column.categories;
  return result;
}

expected<void> check(const server_config& config) {
  const auto& [host, port, token, certificate, key] = config.listen;
  if (certificate.empty() != key.empty())
    return fail(errc::invalid_argument, "a certificate and its key are needed, or neither");
  if (!token.empty() && !is_token_text(token))
    return fail(
        errc::invalid_argument,
        "the token has characters that clients cannot send: it takes letters, digits and -._~+/, and = at its end");
  if (!token.empty() && token.size() < min_token_bytes)
    return fail(errc::invalid_argument, fmt::format("the token is shorter than {} characters", min_token_bytes));
  if (token.empty() && !runtime::is_loopback(host))
    return fail(errc::invalid_argument,
                fmt::format("{} can be reached from other hosts: set a token, or listen at 127.0.0.1", host));
  const auto& limits = config.limits;
  const auto& batching = config.batching;
  const std::array<std::pair<std::string_view, bool>, 9> wrong{{
      {"replicas must be 1 to 256", config.replicas < 1 || config.replicas > 256},
      {"batching.max_rows must be at least 1", batching.max_rows < 1},
      {"batching.max_queued_rows must be at least limits.max_request_rows",
       batching.max_queued_rows < limits.max_request_rows},
      {"limits.max_connections must be at least 1", limits.max_connections < 1},
      {"limits.max_source_connections must be at least 1", limits.max_source_connections == std::size_t{0}},
      {"limits.max_request_rows must be at least 1", limits.max_request_rows < 1},
      {"limits.max_total_body_bytes must be at least limits.max_body_bytes",
       limits.max_total_body_bytes < limits.max_body_bytes},
      {"limits.requests_per_second and limits.burst must not be negative",
       !(limits.requests_per_second >= 0) || !(limits.burst >= 0)},
      {"times must be above 0", limits.receive_timeout.count() <= 0 || limits.predict_timeout.count() <= 0 ||
                                    limits.head_timeout.count() <= 0 || limits.reload_timeout.count() <= 0 ||
                                    limits.send_timeout.count() <= 0 || limits.idle_timeout.count() <= 0 ||
                                    batching.max_delay.count() < 0},
  }};
  for (const auto& [text, is_wrong] : wrong)
    if (is_wrong)
      return fail(errc::invalid_argument, std::string{text});
  return {};
}

} // namespace

class server::impl final : public request_handler {
  enum class phase : std::uint8_t { fresh, starting, running, stopped };

 public:
  impl(server_config config, model_origin origin)
      : config_(std::move(config)),
        queue_(config_.batching),
        keeper_(config_, std::move(origin), queue_, metrics_, [this](const std::string& line) { notice(line); }),
        http_(config_.listen, config_.limits, *this) {
    const auto& limits = config_.limits;
    if (limits.requests_per_second > 0)
      limiter_.emplace(limits.requests_per_second,
                       limits.burst >= 1 ? limits.burst : std::max(1.0, limits.requests_per_second));
  }

  expected<void> start() {
    {
      const auto lock = std::lock_guard{phase_mutex_};
      if (std::exchange(phase_, phase::starting) != phase::fresh)
        return fail(errc::invalid_argument, "a server starts once, and not after a stop");
    }
    TROUPE_TRY(check(config_));
    TROUPE_TRY(http_.open());
    TROUPE_TRY(keeper_.start());
    if (!runtime::is_loopback(config_.listen.host) && !http_.is_encrypted())
      notice("warning: requests, responses and the token travel as clear text: give a certificate, or put a proxy with "
             "TLS in front");
    const auto lock = std::lock_guard{phase_mutex_};
    if (phase_ == phase::stopped)
      return fail(errc::stopped, "the server was stopped before it served");
    TROUPE_TRY(http_.run());
    phase_ = phase::running;
    return {};
  }

  [[nodiscard]] std::uint16_t port() const noexcept { return http_.port(); }

  [[nodiscard]] std::string url() const {
    const auto& host = config_.listen.host;
    const auto is_bare_v6 = host.find(':') != std::string::npos && !host.starts_with('[');
    return fmt::format("{}://{}:{}", http_.is_encrypted() ? "https" : "http", is_bare_v6 ? "[" + host + "]" : host,
                       port());
  }

  expected<reload_report> reload() { return keeper_.reload(time_point::max()); }
  void request_reload() { keeper_.request_reload(); }
  void check_for_newer() { keeper_.check_for_newer(); }

  bool stop(std::chrono::milliseconds grace) {
    const auto lock = std::lock_guard{phase_mutex_};
    is_draining_ = true;
    // Those who wait for it are answered.
    keeper_.stop();
    if (std::exchange(phase_, phase::stopped) == phase::running) {
      is_drained_ = http_.drain(grace);
      queue_.stop();
      http_.close();
    }
    queue_.stop();
    return is_drained_;
  }

  std::optional<response> refuse(const request_head& head) override {
    const auto* found = find_route(head.path);
    const auto is_probe = found != nullptr && (found->what == resource::health || found->what == resource::readiness);
    // What is refused for other reasons counts, too.
    if (auto refusal = is_probe ? std::nullopt : check_rate(head))
      return refusal;
    if (found == nullptr)
      return make_error(404,
                        "there is nothing here: see POST /v1/predict, GET /v1/model, POST /v1/reload, GET /healthz, "
                        "GET /readyz and GET /metrics");
    if (head.method != found->method && !(head.method == "HEAD" && found->method == "GET")) {
      auto result = make_error(405, fmt::format("use {} for {}", found->method, found->path));
      result.headers.emplace_back("Allow", found->method);
      return result;
    }
    if (is_probe)
      return std::nullopt;
    if (auto refusal = check_access(head))
      return refusal;
    if (found->what != resource::predict)
      return std::nullopt;
    if (!head.content_encoding.empty() && head.content_encoding != "identity")
      return make_error(415, "compressed bodies are not supported: send it without Content-Encoding");
    if (!is_supported_type(head.content_type))
      return make_error(415, "send application/json or application/x-npy");
    return std::nullopt;
  }

  response answer(const request_head& head, std::string body, memory_share& held) override {
    switch (find_route(head.path)->what) {
    case resource::predict:
      return predict(head, std::move(body), held);
    case resource::model:
      return describe();
    case resource::reload:
      return answer_reload();
    case resource::health:
      return {200, "application/json", dump({{"status", is_draining_ ? "stopping" : "running"}})};
    case resource::readiness:
      return answer_readiness();
    case resource::metrics:
      return {200, metrics_type, metrics_.text(view())};
    }
    return make_error(500, "a resource without an answer: report a bug");
  }

  void sent(int status) override { metrics_.count_response(status); }

 private:
  std::optional<response> check_access(const request_head& head) {
    const auto& token = config_.listen.token;
    if (!token.empty() && !is_authorized(head.authorization, token)) {
      auto result = make_error(401, "send the server's token as Authorization: Bearer TOKEN");
      result.headers.emplace_back("WWW-Authenticate", "Bearer");
      return result;
    }
    if (token.empty() && !is_local_name(head.host))
      return make_error(403,
                        "a server without a token answers to names of this machine only, such as localhost, in the "
                        "header Host");
    if (token.empty() && !is_local_page(head.origin, head.fetch_site))
      return make_error(403, "a server without a token does not answer to pages of other sites");
    return std::nullopt;
  }

  std::optional<response> check_rate(const request_head& head) {
    if (!limiter_)
      return std::nullopt;
    const auto lock = std::lock_guard{limiter_mutex_};
    const auto wait = limiter_->refuse(source_of(head.peer), std::chrono::steady_clock::now());
    if (!wait)
      return std::nullopt;
    return make_retry(
        429, fmt::format("more than {} requests a second from this address", config_.limits.requests_per_second),
        wait->count());
  }

  /// Holds memory for a request; a response if there is none.
  static std::optional<response> hold(memory_share& held, std::uint64_t bytes) {
    if (held.grow(bytes))
      return std::nullopt;
    if (!held.can_ever_grow(bytes))
      return make_error(413,
                        fmt::format("the rows and their response can take {} bytes, more than the server may hold: "
                                    "send fewer rows",
                                    bytes));
    return make_retry(503, "the server holds as many bytes of requests as it may: try again");
  }

  response predict(const request_head& head, std::string body, memory_share& held) {
    const auto begin = std::chrono::steady_clock::now();
    const auto model = queue_.model();
    if (model == nullptr)
      return make_retry(503, no_model_text);
    const auto most_rows = config_.limits.max_request_rows;
    const auto column_bytes = most_column_bytes(body, *model->inputs, most_rows);
    if (auto refusal = hold(held, column_bytes))
      return *refusal;
    const auto has_npy = is_npy(body);
    auto rows =
        has_npy ? parse_npy_rows(body, *model->inputs, most_rows) : parse_json_rows(body, *model->inputs, most_rows);
    if (!rows)
      return make_error(rows.error().code == errc::unsatisfiable ? 413 : 400, rows.error().message);
    held.shrink(body.size());
    std::string{}.swap(body);
    const auto wants_npy = head.accept.find(npy_type) != std::string::npos ||
                           (has_npy && head.accept.find("application/json") == std::string::npos);
    const auto count = rows->rows;
    if (count == 0)
      return answer_outputs({}, *model, wants_npy);
    // The predictions, and their text.
    const auto output_bytes = count * model->outputs.size() * (sizeof(float) + most_output_bytes);
    held.shrink(column_bytes - count * model->inputs->row_bytes());
    if (auto refusal = hold(held, output_bytes))
      return *refusal;
    const auto outcome = queue_.predict(std::move(*rows), after(begin, config_.limits.predict_timeout));
    if (const auto* reason = std::get_if<unanswered>(&outcome))
      return response_of(*reason);
    if (const auto* reason = std::get_if<error>(&outcome))
      return response_of(*reason);
    metrics_.count_prediction(std::chrono::duration<double>{std::chrono::steady_clock::now() - begin}.count(), count);
    const auto& found = std::get<prediction>(outcome);
    return answer_outputs(found.outputs, *found.model, wants_npy);
  }

  static response answer_outputs(std::span<const float> outputs, const model_face& model, bool as_npy) {
    response result;
    result.content_type = as_npy ? npy_type : "application/json";
    result.body = as_npy ? npy_of_outputs(outputs, model.outputs.size())
                         : json_of_outputs(model.label, outputs, model.outputs.size());
    result.headers.emplace_back("Troupe-Model-Step", std::to_string(model.label.step));
    return result;
  }

  response describe() const {
    const auto model = queue_.model();
    if (model == nullptr)
      return make_retry(503, no_model_text);
    auto inputs = nlohmann::json::array();
    for (const auto& each : model->inputs->columns())
      inputs.push_back(json_of(each));
    return {200, "application/json",
            dump({{"name", model->label.name},
                  {"step", model->label.step},
                  {"checkpoint", model->checkpoint.string()},
                  {"library", model->library},
                  {"inputs", std::move(inputs)},
                  {"outputs", model->outputs},
                  {"replicas", config_.replicas},
                  {"batch_rows", config_.batching.max_rows},
                  {"request_rows", config_.limits.max_request_rows},
                  {"body_bytes", config_.limits.max_body_bytes}})};
  }

  response answer_reload() {
    /// Of the threads for connections, few wait for models.
    struct waiter {
      std::atomic<int>& count;
      int others = count++;
      ~waiter() { --count; }
    };
    const auto own = waiter{reload_waiters_};
    if (own.others >= max_reload_waiters)
      return make_retry(503, "others wait for a reload already");
    const auto done = keeper_.reload(after(std::chrono::steady_clock::now(), config_.limits.reload_timeout));
    if (!done)
      return response_of_reload(done.error());
    if (queue_.model() == nullptr)
      return make_retry(503, no_model_text);
    return {200, "application/json",
            dump({{"changed", done->changed}, {"step", done->step}, {"checkpoint", done->checkpoint.string()}})};
  }

  [[nodiscard]] bool is_ready() const { return !is_draining_ && queue_.model() != nullptr; }

  response answer_readiness() const {
    if (is_ready())
      return {200, "application/json", dump({{"status", "ready"}})};
    return make_error(503, is_draining_ ? "the server stops" : no_model_text);
  }

  metrics_view view() const {
    const auto model = queue_.model();
    return {queue_.queued_requests(),
            queue_.queued_rows(),
            http_.connections(),
            model == nullptr ? 0 : model->label.step,
            is_ready(),
            config_.replicas};
  }

  void notice(const std::string& line) const noexcept {
    try {
      if (config_.notice)
        config_.notice(line);
      else
        std::fprintf(stderr, "%s\n", line.c_str());
    } catch (...) {
      // An operator who cannot be told does not end the server.
    }
  }

  server_config config_;
  metrics metrics_;
  dispatcher queue_;
  model_keeper keeper_;
  std::mutex limiter_mutex_;
  std::optional<rate_limiter> limiter_;
  http_server http_;
  std::atomic<bool> is_draining_ = false;
  std::atomic<int> reload_waiters_ = 0;
  std::mutex phase_mutex_;
  phase phase_ = phase::fresh;
  bool is_drained_ = true;
};

server::server(server_config config, model_origin origin)
    : impl_(std::make_unique<impl>(std::move(config), std::move(origin))) {}

server::~server() {
  (void)stop(std::chrono::milliseconds{0});
}

expected<void> server::start() {
  return impl_->start();
}

std::uint16_t server::port() const noexcept {
  return impl_->port();
}

std::string server::url() const {
  return impl_->url();
}

expected<reload_report> server::reload() {
  return impl_->reload();
}

void server::request_reload() {
  impl_->request_reload();
}

void server::check_for_newer() {
  impl_->check_for_newer();
}

bool server::stop(std::chrono::milliseconds grace) {
  return impl_->stop(grace);
}

} // namespace troupe::serving

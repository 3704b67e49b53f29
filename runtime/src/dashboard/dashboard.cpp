#include <troupe/runtime/dashboard.hpp>

#include "dashboard/page.hpp"
#include "dashboard/peer_owner.hpp"
#include "dashboard/request_guard.hpp"
#include "dashboard/run_shelf.hpp"
#include "monitoring/http_listening.hpp"
#include "net/connection.hpp"
#include "net/host_name.hpp"
#include "process/signals_blocked.hpp"

#include <troupe/actors/decisions/run_status_model.hpp>

#include <fmt/format.h>
#include <httplib.h>
#include <nlohmann/json.hpp>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <string_view>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace troupe::runtime {

namespace {

using ordered = nlohmann::ordered_json;
using namespace std::chrono_literals;

constexpr auto patience = 5s;
constexpr std::size_t threads = 16;
/// Each of which holds a thread.
constexpr int most_streams = 10;
constexpr std::size_t most_runs_of_stream = 6;
constexpr auto push_interval = 1s;
constexpr auto login_path = "/login";
constexpr auto json_type = "application/json";
constexpr auto text_type = "text/plain; charset=utf-8";
constexpr auto html_type = "text/html; charset=utf-8";

std::string text_of(const ordered& document) {
  return document.dump(-1, ' ', false, ordered::error_handler_t::replace);
}

void replace_all(std::string& in, std::string_view what, std::string_view with) {
  for (auto at = in.find(what); at != std::string::npos; at = in.find(what, at + with.size()))
    in.replace(at, what.size(), with);
}

/// A text that nobody can guess.
std::string make_nonce() {
  std::array<unsigned char, 16> bytes{};
  if (::RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1)
    throw exception{errc::io_error, "the system has no random numbers"};
  auto result = std::string{};
  for (auto each : bytes)
    result += fmt::format("{:02x}", each);
  return result;
}

std::string page_with(const std::string& nonce, std::string data) {
  // It must not end the element that it is in.
  replace_all(data, "<", "\\u003c");
  auto result = page_template();
  replace_all(result, "@NONCE@", nonce);
  const auto at = result.find("@DATA@");
  return result.replace(at, std::string_view{"@DATA@"}.size(), data);
}

void set_policy(httplib::Response& response, const std::string& nonce) {
  response.set_header(
      "Content-Security-Policy",
      fmt::format("default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; connect-src 'self'; "
                  "img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
                  nonce));
}

constexpr std::string_view token_page = R"(<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>Troupe: token</title>
<style nonce="@NONCE@">body{font:16px/1.5 system-ui,sans-serif;max-width:32rem;margin:4rem auto;padding:0 1rem;
color:#1b1f24;background:#fff}input,button{font:inherit;padding:.4rem .6rem}</style>
<h1>This dashboard asks for a token</h1><p>It is in the file that its --token-file names.</p>
<form id="f"><label>Token <input id="t" type="password" autocomplete="current-password" autofocus></label>
<button>Open</button></form><p id="m" role="alert"></p>
<script nonce="@NONCE@">document.getElementById('f').onsubmit=async e=>{e.preventDefault();
const r=await fetch('login',{method:'POST',headers:{'X-Troupe-Request':'1'},body:document.getElementById('t').value});
if(r.ok)location.reload();else document.getElementById('m').textContent='This is not the token.';};</script>)";

/// What a client has been sent of a run, by the story's keys.
using sent_parts = std::map<std::string, std::size_t>;

/// The parts that have changed since; updates `sent`.
ordered changes_of(const ordered& story, sent_parts& sent) {
  auto result = ordered::object();
  for (const auto& [key, value] : story.items()) {
    const auto now = std::hash<std::string>{}(text_of(value));
    const auto known = sent.find(key);
    if (known != sent.end() && known->second == now)
      continue;
    sent[key] = now;
    result[key] = value;
  }
  return result;
}

expected<void> check(const dashboard_options& options) {
  if (options.certificate.empty() != options.key.empty())
    return fail(errc::invalid_argument, "a certificate and its key belong together: name both");
  if (is_loopback(options.listen.host))
    return {};
  if (options.token.empty())
    return fail(errc::invalid_argument,
                fmt::format("{} is not on loopback, and everybody who reaches it could stop runs: name a file with a "
                            "token (--token-file)",
                            to_string(options.listen)));
  if (options.certificate.empty())
    return fail(errc::invalid_argument,
                fmt::format("{} is not on loopback, and token and logs would travel in clear text: name a certificate "
                            "and its key (--certificate, --key)",
                            to_string(options.listen)));
  return {};
}

} // namespace

class dashboard::impl {
 public:
  explicit impl(dashboard_options options)
      : options_(std::move(options)), address_(options_.listen), shelf_(options_.storage) {
    if (options_.certificate.empty())
      server_ = std::make_unique<httplib::Server>();
    else
      server_ = std::make_unique<httplib::SSLServer>(options_.certificate.c_str(), options_.key.c_str());
  }

  ~impl() {
    {
      const auto lock = std::lock_guard{mutex_};
      is_ending_ = true;
    }
    changed_.notify_all();
    server_->stop();
    if (thread_.joinable())
      thread_.join();
  }

  expected<void> listen() {
    // The program's signals are none of the server's threads.
    const auto blocked = signals_blocked{};
    if (!server_->is_valid())
      return fail(errc::invalid_argument, fmt::format("{} and {} are no certificate with its key, as PEM files",
                                                      options_.certificate.string(), options_.key.string()));
    server_->new_task_queue = [] { return new bounded_queue{threads}; }; // NOLINT: the library deletes it
    server_->set_socket_options(set_listening_options);
    server_->set_tcp_nodelay(true);
    server_->set_keep_alive_max_count(1);
    server_->set_keep_alive_timeout(patience.count());
    server_->set_read_timeout(patience);
    server_->set_write_timeout(patience);
    server_->set_payload_max_length(4096);
    errno = 0;
    if (address_.port != 0 && !server_->bind_to_port(address_.host, address_.port))
      return fail(cannot_listen(address_, errno));
    if (address_.port == 0) {
      const auto port = server_->bind_to_any_port(address_.host);
      if (port <= 0)
        return fail(cannot_listen(address_, errno));
      address_.port = static_cast<std::uint16_t>(port);
    }
    guard_.emplace(address_.host, address_.port, options_.token);
    add_pages();
    thread_ = std::thread{[this] {
      server_->listen_after_bind();
      has_ended_ = true;
    }};
    // `stop` has no effect before that.
    while (!server_->is_running() && !has_ended_)
      std::this_thread::sleep_for(1ms);
    return {};
  }

  [[nodiscard]] std::string url() const {
    const auto host = is_any_address(address_.host) ? this_host() : address_.host;
    return fmt::format("{}://{}/", options_.certificate.empty() ? "http" : "https",
                       to_string(endpoint{host, address_.port}));
  }

 private:
  using request = httplib::Request;
  using response = httplib::Response;
  using handled = httplib::Server::HandlerResponse;

  void add_pages() {
    server_->set_pre_routing_handler([this](const request& in, response& out) { return admit(in, out); });
    server_->set_exception_handler([](const request&, response& out, const std::exception_ptr&) {
      out.status = 500;
      out.set_content("the dashboard failed to answer this\n", text_type);
    });
    server_->Get("/", [](const request&, response& out) {
      const auto nonce = make_nonce();
      set_policy(out, nonce);
      out.set_content(page_with(nonce, "null"), html_type);
    });
    server_->Get("/api/runs",
                 [this](const request&, response& out) { out.set_content(text_of(shelf_.overview()), json_type); });
    server_->Get("/api/run",
                 [this](const request& in, response& out) { answer(out, shelf_.story(in.get_param_value("name"))); });
    server_->Get("/api/log", [this](const request& in, response& out) { send_log(in, out); });
    server_->Get("/api/events", [this](const request& in, response& out) { stream(in, out); });
    server_->Post(login_path, [this](const request& in, response& out) { log_in(in, out); });
    server_->Post("/api/steer", [this](const request& in, response& out) {
      answer(out, shelf_.steer(in.get_param_value("run"), in.get_param_value("do")));
    });
  }

  static void refuse(response& out, int status, const std::string& why) {
    out.status = status;
    out.set_content(why + "\n", text_type);
  }

  static void answer(response& out, const expected<ordered>& what) {
    if (what)
      return out.set_content(text_of(*what), json_type);
    out.status = what.error().code == errc::not_found ? 404 : what.error().code == errc::unreachable ? 503 : 409;
    out.set_content(text_of({{"error", what.error().message}}), json_type);
  }

  handled admit(const request& in, response& out) {
    out.set_header("X-Content-Type-Options", "nosniff");
    out.set_header("Referrer-Policy", "no-referrer");
    out.set_header("Cache-Control", "no-store");
    out.set_header("Cross-Origin-Resource-Policy", "same-origin");
    const auto value = [&in](const char* name) { return in.get_header_value(name); };
    const auto host = value("Host");
    const auto origin = value("Origin");
    const auto site = value("Sec-Fetch-Site");
    const auto authorization = value("Authorization");
    const auto cookie = value("Cookie");
    const auto own = value("X-Troupe-Request");
    switch (guard_->judge({in.method, host, origin, site, authorization, cookie, own})) {
    case verdict::wrong_host:
      refuse(out, 421, "this server is not known by that name: open it by its address");
      return handled::Handled;
    case verdict::cross_site:
      refuse(out, 403, "a page of another site may not do that (scripts send the header X-Troupe-Request: 1)");
      return handled::Handled;
    case verdict::no_token:
      if (in.method == "POST" && in.path == login_path)
        return handled::Unhandled;
      ask_for_token(in, out);
      return handled::Handled;
    case verdict::allowed:
      break;
    }
    if (!guard_->asks_for_token() && !is_of_same_user(in)) {
      refuse(out, 403, "only the user who started this dashboard, and root, may open it (--token-file lets others)");
      return handled::Handled;
    }
    return handled::Unhandled;
  }

  /// Every user of a machine reaches its loopback.
  [[nodiscard]] bool is_of_same_user(const request& in) const {
    const auto owner = owner_of_loopback_peer(static_cast<std::uint16_t>(in.remote_port), address_.port);
    return owner && (*owner == ::geteuid() || *owner == 0);
  }

  static void ask_for_token(const request& in, response& out) {
    if (in.method == "GET" && in.path == "/") {
      const auto nonce = make_nonce();
      set_policy(out, nonce);
      auto page = std::string{token_page};
      replace_all(page, "@NONCE@", nonce);
      out.status = 401;
      return out.set_content(page, html_type);
    }
    refuse(out, 401, "a token is needed: Authorization: Bearer TOKEN");
  }

  /// Scripts of the page cannot read the cookie, and other sites' links do not send it.
  void log_in(const request& in, response& out) {
    if (!guard_->asks_for_token() || !guard_->is_token(in.body))
      return refuse(out, 401, "this is not the token");
    out.set_header("Set-Cookie", fmt::format("{}={}; Path=/; HttpOnly; SameSite=Strict{}", guard_->cookie_name(),
                                             options_.token, options_.certificate.empty() ? "" : "; Secure"));
    out.set_content("ok\n", text_type);
  }

  void send_log(const request& in, response& out) {
    const auto text = in.get_param_value("worker");
    std::uint32_t worker = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), worker);
    if (code != std::errc{} || end != text.data() + text.size() || text.empty())
      return refuse(out, 400, "worker is a number");
    auto log = shelf_.log(in.get_param_value("run"), worker);
    if (!log)
      return refuse(out, 404, log.error().message);
    out.set_content(*log, text_type);
  }

  /// Events `runs` and `run`, each when something has changed.
  void stream(const request& in, response& out) {
    if (++streams_ > most_streams) {
      --streams_;
      return refuse(out, 503, "too many pages are open");
    }
    std::vector<std::string> names;
    for (std::size_t i = 0; i < std::min(in.get_param_value_count("run"), most_runs_of_stream); ++i)
      names.push_back(in.get_param_value("run", i));
    out.set_chunked_content_provider(
        "text/event-stream",
        [this, names, sent = std::map<std::string, sent_parts>{}, is_first = true](std::size_t,
                                                                                   httplib::DataSink& sink) mutable {
          if (!std::exchange(is_first, false) && !wait())
            return false;
          return push(names, sent, sink);
        },
        [this](bool) { --streams_; });
  }

  /// False at the end.
  bool wait() {
    auto lock = std::unique_lock{mutex_};
    return !changed_.wait_for(lock, push_interval, [this] { return is_ending_; });
  }

  bool push(const std::vector<std::string>& names, std::map<std::string, sent_parts>& sent, httplib::DataSink& sink) {
    // A comment shows a connection that is gone.
    auto text = std::string{": \n"};
    const auto add = [&text](const char* event, const ordered& data) {
      text += fmt::format("event: {}\ndata: {}\n\n", event, text_of(data));
    };
    if (auto changed = changes_of({{"overview", shelf_.overview()}}, sent[""]); !changed.empty())
      add("runs", changed["overview"]);
    for (const auto& name : names) {
      const auto story = shelf_.story(name);
      const auto told = story ? *story : ordered{{"missing", story.error().message}};
      if (auto changed = changes_of(told, sent["run " + name]); !changed.empty())
        add("run", {{"name", name}, {"changes", std::move(changed)}});
    }
    return sink.write(text.data(), text.size());
  }

  dashboard_options options_;
  endpoint address_;
  run_shelf shelf_;
  std::optional<request_guard> guard_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ending_ = false;
  std::atomic<int> streams_{0};
  std::unique_ptr<httplib::Server> server_;
  std::atomic<bool> has_ended_{false};
  std::thread thread_;
};

expected<std::unique_ptr<dashboard>> dashboard::open(dashboard_options options) {
  TROUPE_TRY(check(options));
  auto state = std::make_unique<impl>(std::move(options));
  TROUPE_TRY(state->listen());
  return std::unique_ptr<dashboard>{new dashboard{std::move(state)}};
}

dashboard::dashboard(std::unique_ptr<impl> state) : impl_(std::move(state)) {}
dashboard::~dashboard() = default;

std::string dashboard::url() const {
  return impl_->url();
}

expected<std::string> read_token_file(const std::filesystem::path& path) {
  constexpr std::size_t shortest = 16;
  struct stat status {};
  auto in = std::ifstream{path};
  auto result = std::string{std::istreambuf_iterator<char>{in}, {}};
  if (!in || ::stat(path.c_str(), &status) != 0)
    return fail(errc::io_error, path.string() + " cannot be read");
  if ((status.st_mode & 077) != 0)
    return fail(errc::invalid_argument, fmt::format("others can read {}: chmod 600 it", path.string()));
  while (!result.empty() && std::isspace(static_cast<unsigned char>(result.back())) != 0)
    result.pop_back();
  const auto is_plain = std::ranges::all_of(result, [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view{"._~+/=-"}.find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (result.size() < shortest || !is_plain)
    return fail(errc::invalid_argument, fmt::format("the token in {} must have at least {} letters and digits (openssl "
                                                    "rand -hex 24 makes one)",
                                                    path.string(), shortest));
  return result;
}

std::string render_report(const std::filesystem::path& run, const nlohmann::ordered_json& status) {
  story_reader reader{run};
  reader.read();
  auto story = reader.to_json();
  story["status"] = status;
  story["made"] = actors::utc_text(std::chrono::system_clock::now());
  return page_with("", text_of(story));
}

} // namespace troupe::runtime

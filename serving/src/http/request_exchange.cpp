#include "http/request_exchange.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <fmt/format.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace troupe::serving {

namespace {

/// Of a request's head that is sent slowly, other connections may take the place.
constexpr auto head_place = std::chrono::seconds{1};

/// Smaller bodies are sent together with the head.
constexpr std::size_t copied_bytes = 16'384;

std::string_view reason_of(int status) noexcept {
  switch (status) {
  case 200:
    return "OK";
  case 400:
    return "Bad Request";
  case 401:
    return "Unauthorized";
  case 403:
    return "Forbidden";
  case 404:
    return "Not Found";
  case 405:
    return "Method Not Allowed";
  case 408:
    return "Request Timeout";
  case 409:
    return "Conflict";
  case 411:
    return "Length Required";
  case 413:
    return "Content Too Large";
  case 414:
    return "URI Too Long";
  case 415:
    return "Unsupported Media Type";
  case 417:
    return "Expectation Failed";
  case 422:
    return "Unprocessable Content";
  case 429:
    return "Too Many Requests";
  case 431:
    return "Request Header Fields Too Large";
  case 500:
    return "Internal Server Error";
  case 501:
    return "Not Implemented";
  case 503:
    return "Service Unavailable";
  case 504:
    return "Gateway Timeout";
  case 505:
    return "HTTP Version Not Supported";
  default:
    return "Unknown";
  }
}

/// One request and its response.
class exchange {
 public:
  exchange(connection& client, request_parser& parser, const exchange_context& context)
      : client_(client), parser_(parser), context_(context), held_(context.memory) {}

  /// Whether another request may follow.
  [[nodiscard]] bool run() {
    if (!await_first_byte())
      return false;
    const auto now = std::chrono::steady_clock::now();
    deadline_ = after(now, context_.limits.receive_timeout);
    auto event = next([&] {
      return client_.receive_head(std::min(deadline_, after(now, context_.limits.head_timeout)), now + head_place);
    });
    if (!event)
      return false;
    if (const auto* refused = std::get_if<request_parser::refusal>(&*event))
      return leave(make_error(refused->status, refused->message));
    return answer(std::move(std::get<request_parser::head>(*event)));
  }

 private:
  bool await_first_byte() {
    if (!client_.received().empty())
      return true;
    const auto now = std::chrono::steady_clock::now();
    return client_.receive_head(after(now, context_.limits.idle_timeout), now) == wait_outcome::ready;
  }

  /// The next event but `need_more`. Nothing if the request did not come, which has been answered.
  template <class Receive>
  std::optional<request_parser::event> next(Receive receive) {
    for (;;) {
      auto input = client_.received();
      auto event = parser_.take(input);
      client_.keep(input);
      if (!std::holds_alternative<request_parser::need_more>(event))
        return event;
      switch (receive()) {
      case wait_outcome::ready:
        break;
      case wait_outcome::late:
        (void)leave(make_error(408, fmt::format("{} did not arrive in time", parser_.missing())));
        return std::nullopt;
      case wait_outcome::ended:
        (void)leave(make_error(400, fmt::format("the connection ended before {} was complete", parser_.missing())));
        return std::nullopt;
      case wait_outcome::interrupted:
        return std::nullopt;
      }
    }
  }

  bool answer(request_parser::head head) {
    head.fields.peer = client_.peer();
    auto refused = safely([&] { return context_.handler.refuse(head.fields); });
    const auto is_read = head.fields.method == "POST" || !head.has_body;
    if (!refused && is_read && !held_.grow(head.body_bytes))
      refused = make_retry(503, "the server holds as many bytes of requests as it may: try again");
    if ((refused || !is_read) && head.has_body)
      return leave(refused ? std::move(*refused) : make_error(400, "this method has no body"),
                   head.fields.method == "HEAD");
    if (head.expects_permission && !refused && !client_.send("HTTP/1.1 100 Continue\r\n\r\n"))
      return false;
    auto event = next([&] { return client_.receive(deadline_); });
    if (!event)
      return false;
    if (const auto* broken = std::get_if<request_parser::refusal>(&*event))
      return leave(make_error(broken->status, broken->message));
    auto body = std::move(std::get<request_parser::body>(*event).bytes);
    if (!refused)
      refused = safely([&] { return std::optional{context_.handler.answer(head.fields, std::move(body), held_)}; });
    const auto is_last = head.is_last || context_.is_stopping;
    return send(*refused, is_last, head.fields.method == "HEAD") && !is_last;
  }

  /// What the handler says, or that it failed.
  template <class Ask>
  static std::optional<response> safely(Ask ask) {
    try {
      return ask();
    } catch (const std::exception& x) {
      return make_error(500, fmt::format("the server failed: {}", x.what()));
    } catch (...) {
      return make_error(500, "the server failed");
    }
  }

  /// The last response: some of the request was not read.
  bool leave(const response& what, bool is_head = false) {
    if (send(what, true, is_head))
      client_.linger();
    return false;
  }

  bool send(const response& what, bool is_last, bool is_head) {
    context_.handler.sent(what.status);
    auto head = response_head(what, is_last);
    if (is_head)
      return client_.send(head);
    if (what.body.size() <= copied_bytes)
      return client_.send(head += what.body);
    return client_.send(head) && client_.send(what.body);
  }

  connection& client_;
  request_parser& parser_;
  const exchange_context& context_;
  memory_share held_;
  time_point deadline_;
};

} // namespace

response make_error(int status, std::string_view message) {
  const auto text = nlohmann::json{{"error", {{"code", status}, {"message", message}}}};
  return {status, "application/json", text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"};
}

response make_retry(int status, std::string_view message, double seconds) {
  auto result = make_error(status, message);
  result.headers.emplace_back("Retry-After", fmt::format("{:.0f}", std::max(1.0, std::ceil(seconds))));
  return result;
}

std::string response_head(const response& what, bool is_last) {
  auto result = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n", what.status,
                            reason_of(what.status), what.content_type, what.body.size());
  for (const auto& [name, value] : what.headers)
    fmt::format_to(std::back_inserter(result), "{}: {}\r\n", name, value);
  return result + (is_last ? "Connection: close\r\n\r\n" : "\r\n");
}

void serve_requests(connection& client, const exchange_context& context) {
  auto parser = request_parser{context.limits.max_body_bytes};
  while (exchange{client, parser, context}.run()) {
  }
}

} // namespace troupe::serving

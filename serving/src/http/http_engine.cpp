#include "http/http_engine.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::serving {

namespace {

/// What chunks add to a body: their sizes and line ends, of chunks as small as clients send.
std::uint64_t with_chunk_overhead(std::uint64_t bytes) {
  return bytes + bytes / 4 + 65'536;
}

bool equal_ignoring_case(std::string_view left, std::string_view right) {
  return std::ranges::equal(left, right,
                            [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
}

/// Gives the bytes back when a request is over.
class budget_share {
 public:
  budget_share(body_budget& budget, std::uint64_t bytes) : budget_(budget), bytes_(budget.take(bytes) ? bytes : 0) {}
  ~budget_share() { budget_.give_back(bytes_); }
  budget_share(const budget_share&) = delete;
  budget_share& operator=(const budget_share&) = delete;

  [[nodiscard]] bool is_granted(std::uint64_t wanted) const noexcept { return bytes_ >= wanted; }

 private:
  body_budget& budget_;
  std::uint64_t bytes_;
};

} // namespace

response make_error(int status, std::string_view message) {
  const auto text = nlohmann::json{{"error", {{"code", status}, {"message", message}}}};
  return {status, "application/json", text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"};
}

http_engine::http_engine(request_handler& handler, const limits_config& limits, body_budget& budget,
                         const std::atomic<bool>& is_stopping)
    : handler_(handler), limits_(limits), budget_(budget), is_stopping_(is_stopping) {
  set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& target) {
    auto refusal = admit(request);
    if (!refusal && request.method != "POST") {
      is_complete_ = !body_.exists;
      refusal = handler_.answer(head_of(request), {});
    }
    if (!refusal)
      return HandlerResponse::Unhandled;
    fill(target, std::move(*refusal));
    return HandlerResponse::Handled;
  });
  // Paths are known by now.
  Post(".*", [this](const httplib::Request& request, httplib::Response& target, const httplib::ContentReader& reader) {
    fill(target, receive_and_answer(request, reader));
  });
  set_expect_100_continue_handler([this](const httplib::Request& request, httplib::Response& target) {
    auto refusal = admit(request);
    if (!refusal)
      return 100;
    const auto status = refusal->status;
    fill(target, std::move(*refusal));
    return status;
  });
  set_error_handler(Handler{[this](const httplib::Request&, httplib::Response& target) {
    if (target.body.empty())
      fill(target, explain(target.status));
  }});
  set_exception_handler([](const httplib::Request&, httplib::Response& target, const std::exception_ptr& caught) {
    std::string text = "unknown";
    try {
      std::rethrow_exception(caught);
    } catch (const std::exception& x) {
      text = x.what();
    } catch (...) {
    }
    fill(target, make_error(500, "the server failed: " + text));
  });
  set_post_routing_handler([this](const httplib::Request&, httplib::Response& target) {
    handler_.sent(target.status);
    target.headers.erase("Keep-Alive");
    target.headers.erase("Accept-Ranges");
    if (!is_complete_ || is_stopping_) {
      target.headers.erase("Connection");
      target.set_header("Connection", "close");
    }
  });
}

http_engine::outcome http_engine::serve(connection_stream& stream) {
  stream_ = &stream;
  body_ = {};
  is_admitted_ = false;
  is_complete_ = false;
  auto closed = false;
  const auto is_written = process_request(stream, false, closed, [this](httplib::Request& request) {
    stream_->allow_body(0);
    // Responses are small, and made of numbers.
    request.headers.erase("Accept-Encoding");
    request.ranges.clear();
  });
  stream_ = nullptr;
  if (!is_complete_)
    return outcome::close_unread;
  return is_written && !closed && !is_stopping_ ? outcome::keep : outcome::close;
}

request_head http_engine::head_of(const httplib::Request& request) {
  return {request.method,
          request.path,
          request.remote_addr,
          request.get_header_value("Host"),
          request.get_header_value("Authorization"),
          request.get_header_value("Content-Type"),
          request.get_header_value("Accept")};
}

std::optional<response> http_engine::check_body(const httplib::Request& request) {
  const auto is_chunked = request.has_header("Transfer-Encoding");
  const auto lengths = request.get_header_value_count("Content-Length");
  body_.exists = is_chunked || lengths > 0;
  if (is_chunked && (lengths > 0 || request.get_header_value_count("Transfer-Encoding") > 1))
    return make_error(400, "both Content-Length and Transfer-Encoding, or several of them: send one");
  if (is_chunked && !equal_ignoring_case(request.get_header_value("Transfer-Encoding"), "chunked"))
    return make_error(501, "the only Transfer-Encoding is chunked");
  if (lengths > 1)
    return make_error(400, "several headers Content-Length: send one");
  if (is_chunked) {
    body_.bytes = limits_.max_body_bytes;
  } else if (lengths == 1) {
    const auto text = request.get_header_value("Content-Length");
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), body_.bytes);
    if (code != std::errc{} || end != text.data() + text.size())
      return make_error(400, "Content-Length is not a number");
    body_.exists = body_.bytes > 0;
  } else if (request.method == "POST") {
    return make_error(411, "a POST needs Content-Length, or Transfer-Encoding: chunked");
  }
  if (body_.bytes > limits_.max_body_bytes)
    return make_error(413, fmt::format("the body has {} bytes, and the most is {}: send fewer rows", body_.bytes,
                                       limits_.max_body_bytes));
  if (request.has_header("Content-Encoding") &&
      !equal_ignoring_case(request.get_header_value("Content-Encoding"), "identity"))
    return make_error(415, "compressed bodies are not supported: send it without Content-Encoding");
  if (request.is_multipart_form_data())
    return make_error(415, "forms are not supported: send application/json or application/x-npy");
  return std::nullopt;
}

std::optional<response> http_engine::admit(const httplib::Request& request) {
  if (is_admitted_)
    return std::nullopt;
  is_admitted_ = true;
  auto refusal = check_body(request);
  if (!refusal)
    refusal = handler_.refuse(head_of(request));
  if (refusal)
    is_complete_ = !body_.exists && refusal->status != 400;
  return refusal;
}

response http_engine::receive_and_answer(const httplib::Request& request, const httplib::ContentReader& reader) {
  const auto share = budget_share{budget_, body_.bytes};
  if (!share.is_granted(body_.bytes)) {
    auto busy = make_error(503, "the server holds as many bytes of requests as it may: try again");
    busy.headers.emplace_back("Retry-After", "1");
    return busy;
  }
  const auto is_chunked = request.has_header("Transfer-Encoding");
  stream_->allow_body(is_chunked ? with_chunk_overhead(body_.bytes) : body_.bytes);
  std::string body;
  if (!is_chunked)
    body.reserve(body_.bytes);
  auto is_too_large = false;
  const auto is_read = reader([&](const char* bytes, std::size_t size) {
    is_too_large = body.size() + size > body_.bytes;
    if (!is_too_large)
      body.append(bytes, size);
    return !is_too_large;
  });
  if (is_too_large || (!is_read && stream_->trouble() == reading_trouble::too_large))
    return make_error(413, fmt::format("the body has more than {} bytes: send fewer rows", limits_.max_body_bytes));
  if (!is_read)
    return explain(400);
  is_complete_ = true;
  return handler_.answer(head_of(request), std::move(body));
}

response http_engine::explain(int status) const {
  if (stream_->trouble() == reading_trouble::late)
    return make_error(408, fmt::format("the request was not complete after {} ms", limits_.receive_timeout.count()));
  if (stream_->trouble() == reading_trouble::too_large && stream_->is_head())
    return make_error(431, "request line and headers are longer than 32 KiB");
  switch (status) {
  case 400:
    return make_error(400, "this is not a complete request of HTTP/1.1");
  case 414:
    return make_error(414, "the path is longer than 8 KiB");
  case 416:
    return make_error(400, "the header Range is not one");
  default:
    return make_error(status, "the request cannot be answered");
  }
}

void http_engine::fill(httplib::Response& target, response&& source) {
  target.status = source.status;
  target.set_content(source.body, source.content_type);
  for (auto& [name, value] : source.headers)
    target.set_header(name, value);
}

} // namespace troupe::serving

#include "decisions/request_parser.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>
#include <utility>

namespace troupe::serving {

namespace {

/// Of a request line and all fields together; of all trailers.
constexpr std::size_t max_head_bytes = 32'768;
constexpr std::size_t max_request_line_bytes = 8'192;
constexpr std::size_t max_chunk_line_bytes = 256;

using refusal = request_parser::refusal;

char lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool equal_ignoring_case(std::string_view left, std::string_view right) noexcept {
  return std::ranges::equal(left, right, [](char a, char b) { return lower(a) == lower(b); });
}

bool is_letter_or_digit(char c) noexcept {
  return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z');
}

bool is_token(std::string_view text) noexcept {
  constexpr auto others = std::string_view{"!#$%&'*+-.^_`|~"};
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return is_letter_or_digit(c) || others.find(c) != std::string_view::npos;
  });
}

bool is_control(char c) noexcept {
  return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
}

std::string_view trimmed(std::string_view text) noexcept {
  constexpr auto space = std::string_view{" \t"};
  const auto begin = text.find_first_not_of(space);
  return begin == std::string_view::npos ? std::string_view{}
                                         : text.substr(begin, text.find_last_not_of(space) - begin + 1);
}

/// Whether a list such as "keep-alive, close" has an element.
bool has_element(std::string_view list, std::string_view wanted) noexcept {
  while (!list.empty()) {
    const auto end = std::min(list.find(','), list.size());
    if (equal_ignoring_case(trimmed(list.substr(0, end)), wanted))
      return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

/// Digits alone; the greatest number for one that is greater still. False for anything else.
bool parse_digits(std::string_view text, int base, std::uint64_t& target) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), target, base);
  if (end != text.data() + text.size() || code == std::errc::invalid_argument)
    return false;
  if (code == std::errc::result_out_of_range)
    target = ~std::uint64_t{0};
  return true;
}

/// What is read of fields. All but lists may be given once.
enum class field : std::uint8_t {
  host,
  authorization,
  content_type,
  content_encoding,
  content_length,
  transfer_encoding,
  expect,
  origin,
  fetch_site,
  accept,
  connection,
};

constexpr std::array<std::pair<std::string_view, field>, 11> fields{{{"host", field::host},
                                                                     {"authorization", field::authorization},
                                                                     {"content-type", field::content_type},
                                                                     {"content-encoding", field::content_encoding},
                                                                     {"content-length", field::content_length},
                                                                     {"transfer-encoding", field::transfer_encoding},
                                                                     {"expect", field::expect},
                                                                     {"origin", field::origin},
                                                                     {"sec-fetch-site", field::fetch_site},
                                                                     {"accept", field::accept},
                                                                     {"connection", field::connection}}};

constexpr std::uint32_t bit_of(field which) noexcept {
  return std::uint32_t{1} << static_cast<unsigned>(which);
}

refusal too_large(std::uint64_t most) {
  return {413, fmt::format("the body has more than {} bytes, which is the most: send fewer rows", most)};
}

} // namespace

request_parser::event request_parser::take(std::string_view& input) {
  for (;;) {
    auto done = advance(input);
    if (auto* result = std::get_if<need_more>(&done))
      return *result;
    if (auto* result = std::get_if<head>(&done))
      return std::move(*result);
    if (auto* result = std::get_if<body>(&done))
      return std::move(*result);
    if (auto* result = std::get_if<refusal>(&done))
      return std::move(*result);
  }
}

std::string_view request_parser::missing() const noexcept {
  switch (stage_) {
  case stage::request_line:
    return "the request line";
  case stage::fields:
    return "the headers";
  case stage::body:
  case stage::chunk_size:
  case stage::chunk:
  case stage::chunk_end:
  case stage::trailers:
    break;
  }
  return "the body";
}

request_parser::step request_parser::advance(std::string_view& input) {
  switch (stage_) {
  case stage::body:
    return left_ == 0 ? step{finish()} : take_body(input, stage::body);
  case stage::chunk:
    return take_body(input, stage::chunk_end);
  case stage::request_line:
  case stage::fields:
  case stage::chunk_size:
  case stage::chunk_end:
  case stage::trailers:
    break;
  }
  return read_line(input);
}

request_parser::line_state request_parser::take_line(std::string_view& input, std::size_t most) {
  const auto end = input.find('\n');
  const auto is_complete = end != std::string_view::npos;
  auto part = input.substr(0, is_complete ? end : input.size());
  input.remove_prefix(is_complete ? end + 1 : input.size());
  const auto had_return = line_.ends_with('\r');
  if (had_return && !part.empty())
    return line_state::broken;
  // A carriage return may stand at the end only.
  const auto text = part.ends_with('\r') ? part.substr(0, part.size() - 1) : part;
  if (std::ranges::any_of(text, is_control))
    return line_state::broken;
  if (line_.size() + part.size() > most)
    return line_state::too_long;
  line_ += part;
  if (!is_complete)
    return line_state::incomplete;
  if (!line_.ends_with('\r'))
    return line_state::broken;
  line_.pop_back();
  line_bytes_ += line_.size() + 2;
  return line_state::complete;
}

request_parser::step request_parser::read_line(std::string_view& input) {
  if (input.empty())
    return need_more{};
  switch (take_line(input, max_line_bytes())) {
  case line_state::incomplete:
    return need_more{};
  case line_state::too_long:
    return too_long();
  case line_state::broken:
    return refusal{400,
                   "this is not a request of HTTP/1.1: a control character, or a line that does not end with CR LF"};
  case line_state::complete:
    break;
  }
  auto result = step{};
  switch (stage_) {
  case stage::request_line:
    result = read_request_line();
    break;
  case stage::fields:
    result = line_.empty() ? finish_head() : read_field();
    break;
  case stage::chunk_size:
    result = read_chunk_size();
    break;
  case stage::chunk_end:
    if (!line_.empty())
      result = refusal{400, "a chunk of the body is longer than its size"};
    stage_ = stage::chunk_size;
    break;
  case stage::trailers:
    // They are not used.
    if (line_.empty())
      result = finish();
    else if (!is_token(std::string_view{line_}.substr(0, line_.find(':'))) || line_.find(':') == std::string::npos)
      result = refusal{400, "what follows the last chunk is not a header: NAME: VALUE"};
    break;
  case stage::body:
  case stage::chunk:
    break;
  }
  line_.clear();
  return result;
}

std::size_t request_parser::max_line_bytes() const noexcept {
  switch (stage_) {
  case stage::request_line:
    return max_request_line_bytes;
  case stage::chunk_size:
    return max_chunk_line_bytes;
  case stage::chunk_end:
    return 1;
  case stage::fields:
  case stage::trailers:
  case stage::body:
  case stage::chunk:
    break;
  }
  return max_head_bytes - std::min(line_bytes_, max_head_bytes);
}

request_parser::step request_parser::too_long() const {
  if (stage_ == stage::request_line)
    return refusal{414, "the request line is longer than 8 KiB"};
  if (stage_ == stage::fields || stage_ == stage::trailers)
    return refusal{431, "request line and headers are longer than 32 KiB"};
  return refusal{400, "a chunk of the body is longer than its size, or its size has more than 256 characters"};
}

request_parser::step request_parser::read_request_line() {
  // A client may end the body before with a line too many.
  if (line_.empty() && line_bytes_ == 2)
    return std::monostate{};
  const auto line = std::string_view{line_};
  const auto first = line.find(' ');
  const auto second = line.find(' ', std::min(first, line.size() - 1) + 1);
  if (first == std::string_view::npos || second == std::string_view::npos || !is_token(line.substr(0, first)))
    return refusal{400, "this is not a request of HTTP/1.1: METHOD PATH HTTP/1.1"};
  const auto version = line.substr(second + 1);
  if (!version.starts_with("HTTP/"))
    return refusal{400, "this is not a request of HTTP/1.1: METHOD PATH HTTP/1.1"};
  if (version != "HTTP/1.1" && version != "HTTP/1.0")
    return refusal{505, "the version is not HTTP/1.1"};
  const auto target = line.substr(first + 1, second - first - 1);
  if (!target.starts_with('/') || std::ranges::any_of(target, [](char c) { return c <= ' ' || c > '~'; }))
    return refusal{400, "the request's target is not a path: /v1/predict"};
  head_.fields.method = line.substr(0, first);
  head_.fields.path = target.substr(0, target.find('?'));
  is_old_ = version == "HTTP/1.0";
  head_.is_last = is_old_;
  stage_ = stage::fields;
  return std::monostate{};
}

request_parser::step request_parser::read_field() {
  const auto line = std::string_view{line_};
  const auto colon = line.find(':');
  const auto name = line.substr(0, colon);
  if (colon == std::string_view::npos || !is_token(name))
    return refusal{400, "a header is not NAME: VALUE, or continues on another line"};
  const auto known =
      std::ranges::find_if(fields, [&](const auto& each) { return equal_ignoring_case(each.first, name); });
  if (known == fields.end())
    return std::monostate{};
  const auto value = trimmed(line.substr(colon + 1));
  const auto which = known->second;
  const auto is_list = which == field::accept || which == field::connection;
  if (!is_list && (given_ & bit_of(which)) != 0)
    return refusal{400, fmt::format("several headers {}: send one", known->first)};
  given_ |= bit_of(which);
  auto& own = head_.fields;
  switch (which) {
  case field::host:
    own.host = value;
    break;
  case field::authorization:
    own.authorization = value;
    break;
  case field::content_type:
    own.content_type = value;
    break;
  case field::content_encoding:
    own.content_encoding = value;
    break;
  case field::origin:
    own.origin = value;
    break;
  case field::fetch_site:
    own.fetch_site = value;
    break;
  case field::accept:
    own.accept += own.accept.empty() ? "" : ", ";
    own.accept += value;
    break;
  case field::connection:
    head_.is_last = head_.is_last || has_element(value, "close");
    break;
  case field::expect:
    if (!equal_ignoring_case(value, "100-continue"))
      return refusal{417, "the only Expect is 100-continue"};
    head_.expects_permission = true;
    break;
  case field::transfer_encoding:
    if (!equal_ignoring_case(value, "chunked"))
      return refusal{501, "the only Transfer-Encoding is chunked"};
    is_chunked_ = true;
    break;
  case field::content_length:
    return read_length(value);
  }
  return std::monostate{};
}

request_parser::step request_parser::read_length(std::string_view value) {
  if (!parse_digits(value, 10, left_))
    return refusal{400, "Content-Length is not a number"};
  has_length_ = true;
  return std::monostate{};
}

request_parser::step request_parser::finish_head() {
  if (!is_old_ && (given_ & bit_of(field::host)) == 0)
    return refusal{400, "the header Host is missing"};
  if (is_chunked_ && (has_length_ || is_old_))
    return refusal{400, "Transfer-Encoding with Content-Length, or in HTTP/1.0: send one, with HTTP/1.1"};
  if (!is_chunked_ && !has_length_ && head_.fields.method == "POST")
    return refusal{411, "a POST needs Content-Length, or Transfer-Encoding: chunked"};
  if (left_ > max_body_bytes_)
    return refusal{413,
                   fmt::format("the body has {} bytes, and the most is {}: send fewer rows", left_, max_body_bytes_)};
  head_.has_body = is_chunked_ || left_ > 0;
  head_.body_bytes = is_chunked_ ? max_body_bytes_ : left_;
  head_.expects_permission = head_.expects_permission && head_.has_body && !is_old_;
  stage_ = is_chunked_ ? stage::chunk_size : stage::body;
  line_bytes_ = 0;
  return head_;
}

request_parser::step request_parser::read_chunk_size() {
  // Extensions are not used.
  const auto digits = std::string_view{line_}.substr(0, line_.find(';'));
  if (!parse_digits(digits, 16, left_) || digits.size() > 16)
    return refusal{400, "the size of a chunk is not a hexadecimal number"};
  if (left_ > max_body_bytes_ - body_.size())
    return too_large(max_body_bytes_);
  stage_ = left_ == 0 ? stage::trailers : stage::chunk;
  line_bytes_ = 0;
  return std::monostate{};
}

request_parser::step request_parser::take_body(std::string_view& input, stage after) {
  if (input.empty())
    return need_more{};
  // Takes no memory before it is written to, and no more than was announced after.
  if (body_.capacity() < head_.body_bytes)
    body_.reserve(head_.body_bytes);
  const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(input.size(), left_));
  body_ += input.substr(0, count);
  input.remove_prefix(count);
  left_ -= count;
  if (left_ == 0)
    stage_ = after;
  return std::monostate{};
}

request_parser::body request_parser::finish() {
  auto result = body{std::move(body_)};
  *this = request_parser{max_body_bytes_};
  return result;
}

} // namespace troupe::serving

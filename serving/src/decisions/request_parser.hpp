#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace troupe::serving {

/// A request without its body. Values are as they were sent, without white space at their ends; absent ones are empty.
struct request_head {
  std::string method;
  /// Without the query. Escapes (%41) stay.
  std::string path;
  /// The address of the peer, which the parser does not know.
  std::string peer;
  std::string host;
  std::string authorization;
  std::string content_type;
  std::string content_encoding;
  std::string accept;
  std::string origin;
  std::string fetch_site;
};

/// Reads requests of HTTP/1.1 (RFC 9112) from the bytes of a connection, strictly: what two readers could understand
/// differently is refused, since the bytes after it could be taken for another request. Without socket, clock and
/// thread. Needs memory for a head (32 KiB at most) and the body.
class request_parser {
 public:
  /// All bytes were taken, and more are needed.
  struct need_more {};
  /// The head. The body, if there is one, is taken by the next calls.
  struct head {
    request_head fields;
    bool has_body = false;
    /// The most that the body can have: its length, if that was announced.
    std::uint64_t body_bytes = 0;
    /// The client waits for permission to send the body.
    bool expects_permission = false;
    /// Whether another request may follow.
    bool is_last = false;
  };
  /// All of the body; empty if there is none. The next bytes are another request.
  struct body {
    std::string bytes;
  };
  /// The connection cannot be used any more: where the next request begins is unknown.
  struct refusal {
    int status;
    std::string message;
  };
  using event = std::variant<need_more, head, body, refusal>;

  explicit request_parser(std::uint64_t max_body_bytes) : max_body_bytes_(max_body_bytes) {}

  /// Takes bytes from the front of `input`, up to the next event. After `head` it may be called with no input. Not
  /// after a `refusal`.
  [[nodiscard]] event take(std::string_view& input);

  /// What is missing if the client sends no more, or not in time: "the request line".
  [[nodiscard]] std::string_view missing() const noexcept;

 private:
  enum class stage : std::uint8_t { request_line, fields, body, chunk_size, chunk, chunk_end, trailers };
  enum class line_state : std::uint8_t { incomplete, complete, broken, too_long };
  using step = std::variant<std::monostate, need_more, head, body, refusal>;

  [[nodiscard]] step advance(std::string_view& input);
  [[nodiscard]] line_state take_line(std::string_view& input, std::size_t most);
  [[nodiscard]] std::size_t max_line_bytes() const noexcept;
  [[nodiscard]] step read_line(std::string_view& input);
  [[nodiscard]] step too_long() const;
  [[nodiscard]] step read_request_line();
  [[nodiscard]] step read_field();
  [[nodiscard]] step read_length(std::string_view value);
  [[nodiscard]] step finish_head();
  [[nodiscard]] step read_chunk_size();
  [[nodiscard]] step take_body(std::string_view& input, stage after);
  [[nodiscard]] body finish();

  std::uint64_t max_body_bytes_;
  stage stage_ = stage::request_line;
  /// Of the line that is being read, without its end.
  std::string line_;
  /// Of the lines of this head, or of these trailers.
  std::size_t line_bytes_ = 0;
  head head_;
  bool is_old_ = false;
  /// A bit for each field that may be given once and was.
  std::uint32_t given_ = 0;
  bool is_chunked_ = false;
  bool has_length_ = false;
  /// Of the body or chunk.
  std::uint64_t left_ = 0;
  std::string body_;
};

} // namespace troupe::serving

#pragma once

#include "http/connection_stream.hpp"
#include "http/request_handler.hpp"

#include <atomic>
#include <cstdint>
#include <httplib.h>
#include <optional>
#include <string>

namespace troupe::serving {

/// The bytes of bodies that all connections together may hold. Thread-safe.
class body_budget {
 public:
  explicit body_budget(std::uint64_t bytes) : left_(bytes) {}

  [[nodiscard]] bool take(std::uint64_t bytes) noexcept {
    auto left = left_.load();
    while (left >= bytes)
      if (left_.compare_exchange_weak(left, left - bytes))
        return true;
    return false;
  }
  void give_back(std::uint64_t bytes) noexcept { left_ += bytes; }

 private:
  std::atomic<std::uint64_t> left_;
};

/// cpp-httplib for the requests of one connection after the other: it parses requests and writes responses, and nothing
/// else of it is used. Used by one thread.
class http_engine : private httplib::Server {
 public:
  /// All outlive it. Once `is_stopping` is true, each response is the connection's last.
  http_engine(request_handler& handler, const limits_config& limits, body_budget& budget,
              const std::atomic<bool>& is_stopping);

  /// What becomes of the connection.
  enum class outcome : std::uint8_t {
    keep,
    close,
    /// Some of the request was not read.
    close_unread,
  };

  /// Reads a request from the stream, and writes the response to it.
  [[nodiscard]] outcome serve(connection_stream& stream);

 private:
  /// How a request's body comes.
  struct body_form {
    bool exists = false;
    std::uint64_t bytes = 0;
  };

  [[nodiscard]] static request_head head_of(const httplib::Request& request);
  [[nodiscard]] std::optional<response> check_body(const httplib::Request& request);
  [[nodiscard]] std::optional<response> admit(const httplib::Request& request);
  [[nodiscard]] response receive_and_answer(const httplib::Request& request, const httplib::ContentReader& reader);
  [[nodiscard]] response explain(int status) const;
  static void fill(httplib::Response& target, response&& source);

  request_handler& handler_;
  const limits_config& limits_;
  body_budget& budget_;
  const std::atomic<bool>& is_stopping_;
  connection_stream* stream_ = nullptr;
  /// Of the request that is being served.
  body_form body_;
  bool is_admitted_ = false;
  /// Whether all of its bytes have been read, so that the next ones are another request.
  bool is_complete_ = false;
};

} // namespace troupe::serving

#pragma once

#include "decisions/request_parser.hpp"
#include "memory_budget.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::serving {

struct response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};
};

/// An error as clients get it: `{"error": {"code": 400, "message": "..."}}`.
[[nodiscard]] response make_error(int status, std::string_view message);

/// The same, with the seconds after which the client may try again.
[[nodiscard]] response make_retry(int status, std::string_view message, double seconds = 1);

/// What a server does with requests. All members are called from many threads.
class request_handler {
 public:
  request_handler() = default;
  request_handler(const request_handler&) = delete;
  request_handler& operator=(const request_handler&) = delete;
  virtual ~request_handler() = default;

  /// Before the body is received. A response ends the request. What it lets pass is GET, HEAD or POST.
  [[nodiscard]] virtual std::optional<response> refuse(const request_head& head) = 0;

  /// `held` has the body's bytes, and what it needs besides until the response is sent.
  [[nodiscard]] virtual response answer(const request_head& head, std::string body, memory_share& held) = 0;

  /// Every response that is sent, those of the protocol (such as 400 for what is no HTTP) included.
  virtual void sent(int status) = 0;
};

} // namespace troupe::serving

#pragma once

#include "http/connection.hpp"
#include "http/request_handler.hpp"
#include "memory_budget.hpp"

#include <troupe/serving/server.hpp>

#include <atomic>
#include <string>

namespace troupe::serving {

/// What all connections of a server share. Its members outlive them.
struct exchange_context {
  request_handler& handler;
  const limits_config& limits;
  memory_budget& memory;
  /// Once it is true, each response is its connection's last.
  const std::atomic<bool>& is_stopping;
};

/// Answers the requests of a connection, one after the other, until either side ends it.
void serve_requests(connection& client, const exchange_context& context);

/// A response as it is sent, without its body. Pure.
[[nodiscard]] std::string response_head(const response& what, bool is_last);

} // namespace troupe::serving

#pragma once

#include <troupe/error.hpp>

#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace troupe::runtime {

/// Asks an MLflow tracking server over its REST API (mlflow.org, "REST API", version 2.0). Each call waits for the
/// answer, within the patience it was given for connecting, sending and receiving each. From one thread.
///
/// Fails with `errc::unreachable` if the server does not answer, `errc::timed_out` for a status of 429 or 5xx, after
/// both of which another attempt may succeed; with `errc::not_found` for RESOURCE_DOES_NOT_EXIST, and
/// `errc::invalid_argument` for any other refusal, with the server's message.
class mlflow_client {
 public:
  mlflow_client(const std::string& tracking_uri, std::chrono::milliseconds patience);
  mlflow_client(const mlflow_client&) = delete;
  mlflow_client& operator=(const mlflow_client&) = delete;
  ~mlflow_client();

  /// `what` is the part of the path behind `/api/2.0/mlflow/`.
  [[nodiscard]] expected<nlohmann::json> get(const std::string& what, const std::map<std::string, std::string>& query);
  [[nodiscard]] expected<nlohmann::json> post(const std::string& what, const nlohmann::json& body);

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::runtime

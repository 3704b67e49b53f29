#pragma once

#include <troupe/error.hpp>
#include <troupe/messages/node.hpp>

#include <map>
#include <string>

namespace troupe::actors {

/// The node's half of admitting a worker: challenge and response with the run's secret. The secret itself never
/// travels, and a recorded answer is worthless. A plain class; randomness comes in with the nonces.
///
/// proof(role, nonce) = HMAC-SHA-256(secret, role | run | worker | nonce), as hexadecimal digits.
class join_handshake {
 public:
  explicit join_handshake(std::string secret) : secret_(std::move(secret)) {}

  /// Answers a worker's request. `nonce` is fresh and random.
  [[nodiscard]] join_challenge challenge(const join_request& request, std::string nonce);

  /// Verifies that the worker knows the secret. Every nonce is valid for one attempt.
  [[nodiscard]] expected<void> verify(const join_proof& proof);

 private:
  std::string secret_;
  std::map<worker_id, std::string> open_;
};

enum class join_role { node, worker };

/// The proof that a process in this role makes of the other's nonce.
[[nodiscard]] std::string make_proof(const std::string& secret, join_role role, const run_id& run, worker_id worker,
                                     const std::string& nonce);

/// The worker's half: whether the node knows the secret.
[[nodiscard]] expected<void> verify_node(const std::string& secret, const join_request& request,
                                         const join_challenge& answer);

} // namespace troupe::actors

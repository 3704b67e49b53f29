#include <troupe/actors/decisions/join_handshake.hpp>

#include <troupe/serialization/files/digest.hpp>

#include <fmt/format.h>

#include <utility>

namespace troupe::actors {

namespace {

using serialization::bytes_of;

bool equal(const std::string& a, const std::string& b) {
  return serialization::equal_constant_time(bytes_of(a), bytes_of(b));
}

} // namespace

std::string make_proof(const std::string& secret, join_role role, const run_id& run, worker_id worker,
                       const std::string& nonce) {
  const auto text =
      fmt::format("{}|{}|{}|{}", role == join_role::node ? "node" : "worker", run.value, worker.value, nonce);
  return serialization::to_hex(serialization::hmac_sha256(bytes_of(secret), bytes_of(text)));
}

join_challenge join_handshake::challenge(const join_request& request, std::string nonce) {
  open_[request.worker] = nonce;
  return {std::move(nonce), make_proof(secret_, join_role::node, request.run, request.worker, request.nonce)};
}

expected<void> join_handshake::verify(const join_proof& proof) {
  auto open = open_.extract(proof.worker);
  if (open.empty() ||
      !equal(proof.proof, make_proof(secret_, join_role::worker, proof.run, proof.worker, open.mapped())))
    return fail(errc::wrong_secret,
                fmt::format("a process that claims to be worker {} of run {} does not know the run's secret, and is "
                            "rejected",
                            proof.worker, proof.run));
  return {};
}

expected<void> verify_node(const std::string& secret, const join_request& request, const join_challenge& answer) {
  if (!equal(answer.proof, make_proof(secret, join_role::node, request.run, request.worker, request.nonce)))
    return fail(errc::wrong_secret,
                fmt::format("the node that worker {} was told to join does not know the run's secret", request.worker));
  return {};
}

} // namespace troupe::actors

#include <troupe/actors/decisions/join_handshake.hpp>

#include <doctest/doctest.h>

#include <string>
#include <tuple>

using namespace troupe;
using namespace troupe::actors;

namespace {

const auto run = run_id{"0123"};
const auto secret = std::string(64, 's');
const auto request = join_request{run, {3}, "worker's nonce"};

join_proof proof_of(const std::string& with, const std::string& nonce, worker_id worker = {3}) {
  return {run, worker, make_proof(with, join_role::worker, run, worker, nonce)};
}

} // namespace

TEST_CASE("who knows the secret is let in, and sees that the node knows it, too") {
  auto node = join_handshake{secret};
  auto challenge = node.challenge(request, "node's nonce");
  CHECK(challenge.nonce == "node's nonce");
  CHECK(verify_node(secret, request, challenge));
  CHECK(node.verify(proof_of(secret, challenge.nonce)));
}

TEST_CASE("a proof is HMAC-SHA-256 over role, run, worker and nonce") {
  // From another implementation (Python's hmac module).
  CHECK(make_proof("key", join_role::worker, {"r"}, {7}, "n") ==
        "2ab979bfa1ee4a8dbb97b611e594f4b7b5d18dd82fa63d277aae9f3e91f923eb");
}

TEST_CASE("who does not know the secret is turned away, and the refusal says who it was") {
  auto node = join_handshake{secret};
  auto challenge = node.challenge(request, "nonce");
  auto result = node.verify(proof_of("another secret", challenge.nonce));
  REQUIRE_FALSE(result);
  CHECK(result.error().code == errc::wrong_secret);
  CHECK(result.error().message.find("worker 3 of run 0123") != std::string::npos);
  CHECK(result.error().message.find(secret) == std::string::npos);
}

TEST_CASE("a nonce is good for one try, whether it succeeds or not") {
  auto node = join_handshake{secret};
  auto good = proof_of(secret, node.challenge(request, "first").nonce);
  CHECK(node.verify(good));
  CHECK_FALSE(node.verify(good));
  std::ignore = node.challenge(request, "second");
  CHECK_FALSE(node.verify(good));
  CHECK_FALSE(node.verify(proof_of(secret, "second")));
}

TEST_CASE("a proof without a challenge, or of another worker, is worth nothing") {
  auto node = join_handshake{secret};
  CHECK_FALSE(node.verify(proof_of(secret, "")));
  std::ignore = node.challenge(request, "nonce");
  CHECK_FALSE(node.verify(proof_of(secret, "nonce", {4})));
  auto borrowed = proof_of(secret, "nonce", {4});
  borrowed.worker = {3};
  CHECK_FALSE(node.verify(borrowed));
}

TEST_CASE("what the node sends cannot be sent back to it") {
  auto node = join_handshake{secret};
  auto challenge = node.challenge({run, {3}, "nonce"}, "nonce");
  CHECK_FALSE(node.verify({run, {3}, challenge.proof}));
}

TEST_CASE("a node that does not know the secret is told from one that does") {
  CHECK(verify_node(secret, request, join_handshake{"another"}.challenge(request, "n")).error().code ==
        errc::wrong_secret);
  CHECK_FALSE(verify_node(secret, request, {"n", ""}));
  // The answer to somebody else's request.
  auto other = join_request{run, {3}, "another nonce"};
  CHECK_FALSE(verify_node(secret, request, join_handshake{secret}.challenge(other, "n")));
}

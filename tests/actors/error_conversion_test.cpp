#include "actor_fixture.hpp"

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;

TEST_CASE_FIXTURE(actor_fixture, "an error comes back from CAF's as it was") {
  for (auto code = 1; code <= 20; ++code) {
    auto reason = error{static_cast<errc>(code), "what, where, and what to do"};
    CHECK(from_caf(to_caf(reason)) == reason);
  }
  CHECK(from_caf(caf::error{}) == error{});
}

TEST_CASE_FIXTURE(actor_fixture, "CAF's own errors ask for the same reaction as ours") {
  CHECK(from_caf(caf::sec::request_timeout).code == errc::timed_out);
  for (auto code : {caf::sec::request_receiver_down, caf::sec::broken_promise, caf::sec::remote_linking_failed,
                    caf::sec::cannot_connect_to_node})
    CHECK(from_caf(code).code == errc::unreachable);
  CHECK(from_caf(caf::sec::unexpected_message).code == errc::internal);
  CHECK_FALSE(from_caf(caf::sec::unexpected_message).message.empty());
}

TEST_CASE_FIXTURE(actor_fixture, "an error survives the wire") {
  auto reason = error{errc::unsatisfiable, "4 workers"};
  caf::byte_buffer bytes;
  auto sink = caf::binary_serializer{system(), bytes};
  REQUIRE(sink.apply(to_caf(reason)));
  caf::error loaded;
  auto source = caf::binary_deserializer{system(), bytes};
  REQUIRE(source.apply(loaded));
  CHECK(from_caf(loaded) == reason);
}

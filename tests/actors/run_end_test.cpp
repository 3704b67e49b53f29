#include <troupe/actors/decisions/run_end.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;

namespace {

worker_finished finished(std::uint64_t step, const std::string& state) {
  worker_finished result;
  result.step = {step};
  result.state_sha256 = state;
  return result;
}

} // namespace

TEST_CASE("all training functions end at the same step with the same state") {
  const auto end = run_end::of(finished(10, "a"));
  CHECK(end.status == run_status::completed);
  CHECK_FALSE(end.compare(finished(10, "a"), "worker 1"));
  const auto other_state = end.compare(finished(10, "b"), "worker 1");
  REQUIRE(other_state);
  CHECK(other_state->code == errc::mismatch);
  CHECK(other_state->message.find("worker 1 ends at step 10 with state b, others at step 10 with state a") == 0);
  CHECK(end.compare(finished(9, "a"), "worker 1"));
}

TEST_CASE("a function that returned because of a stop ends the run as stopped") {
  auto message = finished(5, "a");
  message.stopped = true;
  CHECK(run_end::of(message).status == run_status::stopped);
}

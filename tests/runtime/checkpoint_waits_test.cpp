#include "driver/checkpoint_waits.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <utility>

namespace troupe::runtime {

namespace {

using answer = checkpoint_waits::answer;

bool is_there(const answer& x) {
  return x.wait_for(std::chrono::seconds{0}) == std::future_status::ready;
}

errc reason_of(const answer& x) {
  REQUIRE(is_there(x));
  return x.get() ? errc::none : x.get().error().code;
}

run_progress progress(std::uint64_t step) {
  run_progress result;
  result.step = step;
  return result;
}

checkpoint_saved saved(std::uint64_t step) {
  checkpoint_saved result;
  result.step = step_id{step};
  result.path = "step-" + std::to_string(step);
  return result;
}

run_result ended(run_status status, std::uint64_t steps, std::string latest) {
  run_result result;
  result.status = status;
  result.steps = steps;
  result.latest_checkpoint = std::move(latest);
  return result;
}

} // namespace

TEST_CASE("a checkpoint of a step that was done before it was asked for is no answer") {
  checkpoint_waits waits;
  waits.on_begin();
  const auto at_once = waits.add();
  waits.on(progress(10));
  const auto later = waits.add();
  waits.on(saved(10));
  REQUIRE(is_there(at_once));
  CHECK(*at_once.get() == "step-10");
  CHECK_FALSE(is_there(later));
  waits.on(saved(11));
  REQUIRE(is_there(later));
  CHECK(*later.get() == "step-11");
}

TEST_CASE("who asks between runs hears why there is no checkpoint") {
  checkpoint_waits waits;
  CHECK(reason_of(waits.add()) == errc::invalid_argument);
  waits.on_begin();
  waits.on_end(ended(run_status::completed, 20, {}));
  CHECK(reason_of(waits.add()) == errc::invalid_argument);
}

TEST_CASE("a checkpoint that fails or is skipped is an answer, too") {
  checkpoint_waits waits;
  waits.on_begin();
  const auto first = waits.add();
  checkpoint_failed failed;
  failed.step = step_id{5};
  failed.reason = {errc::io_error, "no space"};
  waits.on(failed);
  CHECK(reason_of(first) == errc::io_error);
  const auto second = waits.add();
  checkpoint_skipped skipped;
  skipped.step = step_id{6};
  waits.on(skipped);
  CHECK(reason_of(second) == errc::busy);
}

TEST_CASE("at the end of a run who waits gets its last checkpoint, if that is new") {
  checkpoint_waits waits;
  waits.on_begin();
  const auto asked = waits.add();
  waits.on_end(ended(run_status::stopped, 7, "step-7"));
  REQUIRE(is_there(asked));
  CHECK(*asked.get() == "step-7");

  waits.on_begin();
  waits.on(progress(7));
  const auto too_late = waits.add();
  waits.on_end(ended(run_status::completed, 7, "step-7"));
  CHECK(reason_of(too_late) == errc::aborted);

  waits.on_begin();
  const auto failed = waits.add();
  waits.on_end(ended(run_status::failed, 9, "step-9"));
  CHECK(reason_of(failed) == errc::aborted);
}

} // namespace troupe::runtime

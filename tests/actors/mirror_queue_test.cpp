#include <troupe/actors/decisions/mirror_queue.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

using clock_type = mirror_queue::clock;
const auto start = clock_type::time_point{} + 1h;

mirror_queue make_queue(std::size_t num_to_keep = 2) {
  return mirror_queue{{.keep = {.num_to_keep = num_to_keep}}};
}

/// One that knows of an empty mirror.
mirror_queue empty_mirror(std::size_t num_to_keep = 2) {
  auto queue = make_queue(num_to_keep);
  REQUIRE(queue.next(start) == mirror_action{mirror_job::look{}});
  queue.on_found({}, {});
  return queue;
}

std::string text(const mirror_action& action) {
  if (std::holds_alternative<mirror_job::look>(action))
    return "look";
  if (const auto* job = std::get_if<mirror_job::upload>(&action))
    return "upload " + std::to_string(job->step.value);
  if (const auto* job = std::get_if<mirror_job::remove>(&action))
    return "remove " + std::to_string(job->step.value);
  if (std::holds_alternative<mirror_job::upload_records>(action))
    return "records";
  const auto until = std::get<mirror_job::wait>(action).until;
  return until ? "wait " + std::to_string((*until - start) / 1ms) : "wait";
}

/// Does what the queue wants until it waits.
std::vector<std::string> settle(mirror_queue& queue, clock_type::time_point now = start) {
  std::vector<std::string> result;
  for (;;) {
    const auto action = queue.next(now);
    if (std::holds_alternative<mirror_job::wait>(action))
      return result;
    result.push_back(text(action));
    if (std::holds_alternative<mirror_job::look>(action))
      queue.on_found({}, {});
    else if (std::holds_alternative<mirror_job::upload>(action))
      queue.on_uploaded();
    else if (std::holds_alternative<mirror_job::remove>(action))
      queue.on_removed();
    else
      queue.on_records_uploaded();
  }
}

std::vector<std::uint64_t> steps(const std::vector<step_id>& all) {
  std::vector<std::uint64_t> result;
  for (const auto step : all)
    result.push_back(step.value);
  return result;
}

using texts = std::vector<std::string>;
using numbers = std::vector<std::uint64_t>;

} // namespace

TEST_CASE("a mirror is looked at first, then gets each checkpoint and the run's files after it") {
  auto queue = make_queue();
  CHECK_FALSE(queue.is_done());
  CHECK(settle(queue) == texts{"look"});
  CHECK(queue.is_done());
  queue.on_saved({{10}});
  CHECK_FALSE(queue.is_done());
  CHECK(settle(queue) == texts{"upload 10", "records"});
  queue.on_saved({{20}});
  CHECK(settle(queue) == texts{"upload 20", "records"});
  CHECK(steps(queue.stored()) == numbers{10, 20});
  CHECK(queue.is_done());
}

TEST_CASE("while one is copied, newer checkpoints supersede those that wait, so that at most one waits") {
  auto queue = empty_mirror();
  queue.on_saved({{10}});
  CHECK(text(queue.next(start)) == "upload 10");
  for (const std::uint64_t step : {20, 30, 40})
    queue.on_saved({{step}});
  CHECK(queue.superseded() == 2);
  queue.on_uploaded();
  CHECK(settle(queue) == texts{"upload 40", "records"});
  CHECK(steps(queue.stored()) == numbers{10, 40});
}

TEST_CASE("one that failed is given up if a newer one waits") {
  auto queue = empty_mirror();
  queue.on_saved({{10}});
  CHECK(text(queue.next(start)) == "upload 10");
  queue.on_saved({{20}});
  CHECK(queue.superseded() == 0);
  CHECK(queue.on_failed(start) == 2s);
  CHECK(queue.superseded() == 1);
  // What is left of the first takes space, and is removed meanwhile.
  CHECK(settle(queue) == texts{"remove 10"});
  CHECK(text(queue.next(start)) == "wait 2000");
  CHECK(settle(queue, start + 2s) == texts{"upload 20", "records"});
  CHECK(queue.failed_attempts() == 1);
}

TEST_CASE("failures are followed by pauses that double up to a limit, and a success ends them") {
  auto queue = empty_mirror();
  queue.on_saved({{10}});
  auto now = start;
  std::vector<std::chrono::milliseconds> pauses;
  for (int i = 0; i < 10; ++i) {
    REQUIRE(text(queue.next(now)) == "upload 10");
    pauses.push_back(queue.on_failed(now));
    // Not a moment sooner.
    CHECK(std::holds_alternative<mirror_job::wait>(queue.next(now + pauses.back() - 1ms)));
    now += pauses.back();
  }
  CHECK(pauses == std::vector<std::chrono::milliseconds>{2s, 4s, 8s, 16s, 32s, 64s, 128s, 256s, 300s, 300s});
  REQUIRE(text(queue.next(now)) == "upload 10");
  queue.on_uploaded();
  REQUIRE(text(queue.next(now)) == "records");
  CHECK(queue.on_failed(now) == 2s);
}

TEST_CASE("a run that ends tries again at once, and then every few seconds") {
  auto queue = empty_mirror();
  queue.on_saved({{10}});
  auto now = start;
  for (int i = 0; i < 6; ++i) {
    REQUIRE(text(queue.next(now)) == "upload 10");
    now += queue.on_failed(now);
  }
  REQUIRE(text(queue.next(now)) == "upload 10");
  CHECK(queue.on_failed(now) == 128s);
  queue.on_end(now + 1s);
  REQUIRE(text(queue.next(now + 1s)) == "upload 10");
  CHECK(queue.on_failed(now + 1s) == 5s);
}

TEST_CASE("an old checkpoint is removed only after a newer one has been copied") {
  auto queue = make_queue(1);
  REQUIRE(text(queue.next(start)) == "look");
  // Three are there, of which nobody knows whether they are good.
  queue.on_found({{{10}}, {{20}}, {{30}}}, {});
  CHECK(settle(queue).empty());
  queue.on_saved({{40}});
  REQUIRE(text(queue.next(start)) == "upload 40");
  queue.on_failed(start);
  CHECK(settle(queue) == texts{});
  CHECK(settle(queue, start + 2s) == texts{"upload 40", "records", "remove 10", "remove 20", "remove 30"});
  CHECK(steps(queue.stored()) == numbers{40});
}

TEST_CASE("a checkpoint that is newer than all copies of this run stays, whatever is kept") {
  auto queue = make_queue(1);
  REQUIRE(text(queue.next(start)) == "look");
  queue.on_found({{{50}}, {{90}}}, {});
  queue.on_saved({{60}});
  CHECK(settle(queue) == texts{"upload 60", "records", "remove 50"});
  CHECK(steps(queue.stored()) == numbers{60, 90});
}

TEST_CASE("a checkpoint that the mirror had before stays after a failed upload of it, until a newer one is there") {
  auto queue = make_queue();
  REQUIRE(text(queue.next(start)) == "look");
  queue.on_found({{{10}}}, {});
  queue.on_saved({{10}});
  REQUIRE(text(queue.next(start)) == "upload 10");
  queue.on_failed(start);
  queue.on_saved({{20}});
  CHECK(text(queue.next(start)) == "wait 2000");
  REQUIRE(text(queue.next(start + 2s)) == "upload 20");
  // A second failure changes nothing.
  queue.on_failed(start + 2s);
  CHECK(settle(queue, start + 1h) == std::vector<std::string>{"upload 20", "records", "remove 10"});
}

TEST_CASE("what uploads have left is removed, unless it is about to be copied again") {
  auto queue = make_queue();
  queue.on_saved({{30}});
  REQUIRE(text(queue.next(start)) == "look");
  queue.on_found({{{10}}}, {{20}, {30}});
  CHECK(settle(queue) == texts{"upload 30", "records", "remove 20"});
  CHECK(steps(queue.stored()) == numbers{10, 30});
}

TEST_CASE("who may not remove may still copy, and a run does not wait for it") {
  auto queue = empty_mirror(1);
  queue.on_saved({{10}});
  settle(queue);
  queue.on_saved({{20}});
  REQUIRE(text(queue.next(start)) == "upload 20");
  queue.on_uploaded();
  REQUIRE(text(queue.next(start)) == "records");
  queue.on_records_uploaded();
  REQUIRE(text(queue.next(start)) == "remove 10");
  CHECK_FALSE(queue.is_done());
  queue.on_failed(start);
  CHECK(text(queue.next(start)) == "wait 2000");
  CHECK(queue.is_done());
  // It may be half gone.
  CHECK(steps(queue.stored()) == numbers{20});
  queue.on_saved({{30}});
  CHECK(text(queue.next(start)) == "upload 30");
}

TEST_CASE("the best by a metric is copied although a newer one waits, and kept there") {
  auto queue = mirror_queue{{.keep = {.num_to_keep = 1, .score_attribute = "accuracy"}}};
  REQUIRE(text(queue.next(start)) == "look");
  queue.on_found({{{5}, {{"accuracy", 0.5}}}}, {});
  queue.on_saved({{10}, {{"accuracy", 0.6}}});
  REQUIRE(text(queue.next(start)) == "upload 10");
  queue.on_saved({{20}, {{"accuracy", 0.9}}});
  queue.on_saved({{30}, {{"accuracy", 0.7}}});
  queue.on_saved({{40}, {{"accuracy", 0.8}}});
  CHECK(queue.superseded() == 1);
  queue.on_uploaded();
  CHECK(settle(queue) == texts{"upload 40", "upload 20", "records", "remove 5", "remove 10"});
  CHECK(steps(queue.stored()) == numbers{20, 40});
}

TEST_CASE("a checkpoint that the run's directory has lost is not waited for") {
  auto queue = empty_mirror();
  queue.on_saved({{10}});
  REQUIRE(text(queue.next(start)) == "upload 10");
  queue.on_missing({10});
  CHECK(queue.is_done());
  CHECK(settle(queue) == texts{});
}

TEST_CASE("files that change while they are copied are copied again") {
  auto queue = empty_mirror();
  queue.on_records_changed();
  REQUIRE(text(queue.next(start)) == "records");
  CHECK(queue.lacks_records());
  queue.on_records_changed();
  queue.on_records_uploaded();
  CHECK_FALSE(queue.is_done());
  CHECK(queue.lacks_records());
  CHECK(settle(queue) == texts{"records"});
}

TEST_CASE("whatever fails, the mirror keeps a good checkpoint once it has one, and in the end it has the newest") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  for (int round = 0; round < 300; ++round) {
    const auto keep = 1 + random() % 3;
    auto queue = make_queue(keep);
    auto now = start;
    std::uint64_t step = 0;
    // What is really there: complete and verified, or not.
    std::set<std::uint64_t> good;
    std::vector<serialization::retention_candidate> before;
    if (random() % 2 == 0) {
      // An earlier driver has copied what this one begins with.
      step = 1;
      good.insert(step);
      before.push_back({{step}});
      queue.on_saved({{step}});
    }
    const auto act = [&](bool may_fail) {
      const auto action = queue.next(now);
      if (const auto* wait = std::get_if<mirror_job::wait>(&action)) {
        if (wait->until)
          now = *wait->until;
        return;
      }
      now += std::chrono::milliseconds{random() % 5'000};
      // Meanwhile training goes on.
      while (may_fail && random() % 2 == 0)
        queue.on_saved({{step += 1 + random() % 5}});
      const auto fails = may_fail && random() % 3 == 0;
      if (const auto* job = std::get_if<mirror_job::remove>(&action)) {
        if (good.contains(job->step.value))
          CHECK(job->step.value < *good.rbegin());
        good.erase(job->step.value);
        fails ? void(queue.on_failed(now)) : queue.on_removed();
      } else if (fails)
        queue.on_failed(now);
      else if (std::holds_alternative<mirror_job::look>(action))
        queue.on_found(before, {});
      else if (const auto* upload = std::get_if<mirror_job::upload>(&action)) {
        good.insert(upload->step.value);
        queue.on_uploaded();
      } else
        queue.on_records_uploaded();
    };
    for (int i = 0; i < 60; ++i) {
      const auto had_one = !good.empty();
      act(true);
      CHECK((!had_one || !good.empty()));
    }
    queue.on_saved({{++step}});
    queue.on_end(now);
    for (int i = 0; i < 100 && !queue.is_done(); ++i)
      act(false);
    REQUIRE(queue.is_done());
    CHECK(*good.rbegin() == step);
    CHECK(good.size() <= keep);
  }
}

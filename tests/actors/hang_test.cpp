#include <troupe/actors/decisions/hang.hpp>

#include <troupe/messages.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <vector>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

using action = hang_finding::action;
constexpr auto user_code = activity_kind::user_code;
constexpr auto collective = activity_kind::collective;
constexpr auto checkpoint = activity_kind::checkpoint;
constexpr auto control = activity_kind::control;

const auto start = hang_watch::clock::time_point{1000s};

/// Ranks that do as told, with beats every 200 ms. The worker of rank r is r + 1.
class group {
 public:
  explicit group(const std::vector<activity_kind>& ranks, hang_settings settings = {}) : watch_(settings) {
    for (auto x : ranks)
      ranks_.push_back({x, 0});
    beat();
  }

  void move(std::uint32_t rank, activity_kind to) {
    ranks_[rank] = {to, ranks_[rank].progress + 1};
    beat();
  }

  /// Says that it does something, where it stands.
  void heartbeat(std::uint32_t rank) { move(rank, ranks_[rank].activity); }

  /// Lets time pass; what was found at the end of each second.
  std::vector<hang_finding> pass(std::chrono::seconds time) {
    std::vector<hang_finding> result;
    for (auto end = now_ + time; now_ < end;) {
      now_ += 200ms;
      beat();
      if ((now_ - start) % 1s == 0s)
        for (auto& x : watch_.check())
          result.push_back(std::move(x));
    }
    return result;
  }

  /// No beat comes, and nobody asks.
  void skip(std::chrono::seconds time) { now_ += time; }

  hang_watch& watch() { return watch_; }

 private:
  struct rank_state {
    activity_kind activity;
    std::uint64_t progress;
  };

  void beat() {
    for (std::uint32_t i = 0; i < ranks_.size(); ++i)
      watch_.observe({{i + 1}, {i}, ranks_[i].progress, ranks_[i].activity, "after step 17"}, now_);
  }

  hang_watch watch_;
  hang_watch::clock::time_point now_ = start;
  std::vector<rank_state> ranks_;
};

constexpr auto only_report = hang_settings{30s, 0s};

} // namespace

TEST_CASE("a rank that stalls in user code while others wait for it is at fault, and they are not") {
  auto ranks = group{{collective, collective, user_code, collective}, only_report};
  CHECK(ranks.pass(29s).empty());
  auto found = ranks.pass(1s);
  REQUIRE(found.size() == 1);
  CHECK(found[0] ==
        hang_finding{action::report, worker_id{3},
                     "worker 3 (rank 2) has made no progress in user code for 30 s, after step 17; ranks 0, 1 "
                     "and 3 wait for it"});
}

TEST_CASE("who waits at a checkpoint or for the driver is not at fault either") {
  auto ranks = group{{checkpoint, user_code, control}};
  auto found = ranks.pass(30s);
  REQUIRE(found.size() == 1);
  CHECK(found[0].at_fault == worker_id{2});
  CHECK(found[0].reason ==
        "worker 2 (rank 1) has made no progress in user code for 30 s, after step 17; ranks 0 and 2 wait for "
        "it; it is replaced after 600 s, unless it calls heartbeat()");
}

TEST_CASE("a hang is reported again at doubled intervals") {
  auto ranks = group{{user_code, collective}, only_report};
  CHECK(ranks.pass(30s).size() == 1);
  CHECK(ranks.pass(29s).empty());
  CHECK(ranks.pass(1s).size() == 1);
  CHECK(ranks.pass(59s).empty());
  CHECK(ranks.pass(1s).size() == 1);
}

TEST_CASE("who moves begins again") {
  auto ranks = group{{user_code, collective}, only_report};
  CHECK(ranks.pass(59s).size() == 1);
  ranks.move(0, collective);
  ranks.move(1, user_code);
  CHECK(ranks.pass(29s).empty());
  auto found = ranks.pass(1s);
  REQUIRE(found.size() == 1);
  CHECK(found[0].at_fault == worker_id{2});
}

TEST_CASE("a rank that calls heartbeat() never counts as hung, nor do those that wait for it") {
  auto ranks = group{{user_code, collective}};
  for (int i = 0; i < 60; ++i) {
    CHECK(ranks.pass(29s).empty());
    ranks.heartbeat(0);
  }
}

TEST_CASE("who is at fault is replaced at the deadline, once") {
  auto ranks = group{{user_code, collective}, {30s, 100s}};
  CHECK(ranks.pass(99s).size() == 2);
  auto found = ranks.pass(1s);
  REQUIRE(found.size() == 1);
  CHECK(found[0] == hang_finding{action::replace, worker_id{1},
                                 "worker 1 (rank 0) has made no progress in user code for 100 s, after step 17; rank 1 "
                                 "waits for it; it is replaced"});
  for (const auto& x : ranks.pass(1000s))
    CHECK(x.what == action::report);
}

TEST_CASE("a deadline before the first report replaces all the same") {
  auto ranks = group{{user_code, collective}, {30s, 10s}};
  CHECK(ranks.pass(9s).empty());
  auto found = ranks.pass(1s);
  REQUIRE(found.size() == 1);
  CHECK(found[0].what == action::replace);
}

TEST_CASE("nobody is replaced without a deadline") {
  auto ranks = group{{user_code, collective}, only_report};
  auto found = ranks.pass(3600s);
  CHECK_FALSE(found.empty());
  CHECK(std::ranges::all_of(found, [](const auto& x) { return x.what == action::report; }));
}

TEST_CASE("a single rank that computes for long is named, and replaced at the deadline only") {
  auto ranks = group{{user_code}, {30s, 100s}};
  auto found = ranks.pass(99s);
  REQUIRE(found.size() == 2);
  CHECK(found[0].reason ==
        "worker 1 (rank 0) has made no progress in user code for 30 s, after step 17; it is replaced after "
        "100 s, unless it calls heartbeat()");
  CHECK(found[1].what == action::report);
  found = ranks.pass(1s);
  REQUIRE(found.size() == 1);
  CHECK(found[0].what == action::replace);
}

TEST_CASE("several in user code are each at fault from when they came there") {
  auto ranks = group{{user_code, collective, collective}, only_report};
  CHECK(ranks.pass(10s).empty());
  ranks.move(1, user_code);
  CHECK(ranks.pass(19s).empty());
  auto found = ranks.pass(1s);
  REQUIRE(found.size() == 1);
  CHECK(found[0].at_fault == worker_id{1});
  found = ranks.pass(11s);
  REQUIRE(found.size() == 1);
  CHECK(found[0].at_fault == worker_id{2});
  CHECK(found[0].reason ==
        "worker 2 (rank 1) has made no progress in user code for 30 s, after step 17; rank 2 waits for it");
}

TEST_CASE("when all wait and nobody is in user code, nobody is at fault") {
  auto ranks = group{{collective, checkpoint, collective, control}, {30s, 60s}};
  CHECK(ranks.pass(29s).empty());
  auto found = ranks.pass(1s);
  REQUIRE(found.size() == 1);
  CHECK(found[0] ==
        hang_finding{action::report, std::nullopt,
                     "no rank has made progress for 30 s: ranks 0 and 2 are in a collective operation; rank 1 is at "
                     "a checkpoint; rank 3 is waiting for the driver; none is in user code, so none is to blame"});
  CHECK(ranks.pass(29s).empty());
  found = ranks.pass(1s);
  REQUIRE(found.size() == 1);
  CHECK(found[0].what == action::report);
}

TEST_CASE("where all wait for each other in a collective operation, the group is to be formed anew, once") {
  auto ranks = group{{collective, control}, {30s, 600s, 100s}};
  auto found = ranks.pass(99s);
  REQUIRE(found.size() == 2);
  CHECK(found[1].what == action::report);
  found = ranks.pass(1s);
  REQUIRE(found.size() == 1);
  CHECK(found[0].what == action::regroup);
  CHECK_FALSE(found[0].at_fault);
  CHECK(found[0].reason.starts_with("no rank has made progress for 100 s: rank 0 is in a collective operation"));
  for (const auto& each : ranks.pass(300s))
    CHECK(each.what == action::report);
  ranks.move(1, collective);
  found = ranks.pass(100s);
  REQUIRE(!found.empty());
  CHECK(found.back().what == action::regroup);
}

TEST_CASE("if one computes, waits at a checkpoint, or nobody needs another, the group stays") {
  for (const auto& others : {std::vector{user_code, collective}, {checkpoint, collective}, {control, control}}) {
    auto ranks = group{others, {30s, 0s, 60s}};
    for (const auto& each : ranks.pass(200s))
      CHECK(each.what == action::report);
  }
}

TEST_CASE("while one of them moves, nothing is said about those who wait") {
  auto ranks = group{{collective, collective}};
  for (int i = 0; i < 10; ++i) {
    CHECK(ranks.pass(20s).empty());
    ranks.move(1, collective);
  }
  CHECK(ranks.pass(30s).size() == 1);
  ranks.move(0, collective);
  CHECK(ranks.pass(29s).empty());
  CHECK(ranks.pass(1s).size() == 1);
}

TEST_CASE("time in which the driver heard nothing is not held against the workers") {
  auto ranks = group{{user_code, collective}, {30s, 100s}};
  CHECK(ranks.pass(20s).empty());
  ranks.skip(1000s);
  // The first beat after the gap brings 2 s of it.
  CHECK(ranks.pass(7s).empty());
  CHECK(ranks.pass(2s).size() == 1);
}

TEST_CASE("who is removed is forgotten, and so are all when another generation begins") {
  auto ranks = group{{user_code, collective}, {30s, 100s}};
  CHECK(ranks.pass(29s).empty());
  ranks.watch().remove({1});
  CHECK(ranks.pass(29s).empty());
  ranks.watch().clear();
  CHECK(ranks.watch().check().empty());
  CHECK(ranks.pass(29s).empty());
  CHECK(ranks.pass(2s).size() == 1);
}

#include "worker/life/metrics_pusher.hpp"

#include <doctest/doctest.h>

#include <condition_variable>
#include <memory>

namespace troupe::runtime {

namespace {

/// A driver that takes metrics only, behind a gate.
class gated_driver : public driver_client {
 public:
  expected<exchange_result> exchange(const exchange_request&) override {
    return fail(errc::internal, "this fake does not implement it");
  }
  expected<std::vector<std::vector<collectives::unique_fd>>>
  exchange_descriptors(const descriptor_offer&, std::span<const int>, const std::stop_token&) override {
    return {};
  }
  expected<plan_accepted> agree(const run_plan&) override {
    return fail(errc::internal, "this fake does not implement it");
  }
  expected<next_generation> regroup(const regroup_report&) override { return fail(errc::aborted, "the run is ending"); }
  expected<exchange_result> exchange_staging(const exchange_request&) override {
    return fail(errc::internal, "this fake does not implement it");
  }
  void tell(const caught_up&) override {}
  void end(const exchange_ended&) override {}
  expected<checkpoint_outcome> deliver(const checkpoint_part&) override {
    return fail(errc::internal, "this fake does not implement it");
  }
  void finish(const worker_finished&) override {}

  expected<void> push(const metrics_batch& batch) override {
    auto lock = std::unique_lock{mutex_};
    overlapped_ = overlapped_ || busy_;
    busy_ = true;
    ++begun_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    busy_ = false;
    if (refuse_)
      return fail(errc::unreachable, "the driver is gone");
    batches_.push_back(batch);
    changed_.notify_all();
    return {};
  }

  void open(bool value = true) {
    auto lock = std::lock_guard{mutex_};
    open_ = value;
    changed_.notify_all();
  }

  void refuse(bool value) {
    auto lock = std::lock_guard{mutex_};
    refuse_ = value;
  }

  void wait_for_begun(int n) {
    auto lock = std::unique_lock{mutex_};
    changed_.wait(lock, [&] { return begun_ >= n; });
  }

  /// Whether two batches were ever under way at a time.
  bool overlapped() {
    auto lock = std::lock_guard{mutex_};
    return overlapped_;
  }

  std::vector<metrics_batch> batches() {
    auto lock = std::lock_guard{mutex_};
    return batches_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<metrics_batch> batches_;
  bool open_ = true;
  bool busy_ = false;
  bool overlapped_ = false;
  bool refuse_ = false;
  int begun_ = 0;
};

metrics_batch head() {
  metrics_batch result;
  result.run = run_id{"r"};
  result.worker = worker_id{4};
  result.rank = rank_id{2};
  return result;
}

metric_row row(std::uint64_t step) {
  return {step_id{step}, step * 10, 0, {{"loss", 1.0 / static_cast<double>(step)}}};
}

struct totals {
  std::vector<std::uint64_t> rows;
  std::vector<std::uint64_t> ledger;
  std::uint64_t dropped = 0;
  std::uint64_t applied = 0;
};

totals sum_of(const std::vector<metrics_batch>& batches) {
  totals result;
  for (const auto& batch : batches) {
    CHECK(batch.run == run_id{"r"});
    CHECK(batch.worker == worker_id{4});
    CHECK(batch.rank == rank_id{2});
    CHECK(batch.applied.value >= result.applied);
    result.applied = batch.applied.value;
    result.dropped += batch.dropped;
    for (const auto& each : batch.rows)
      result.rows.push_back(each.step.value);
    for (const auto& each : batch.ledger)
      result.ledger.push_back(each.step.value);
  }
  return result;
}

std::vector<std::uint64_t> up_to(std::uint64_t n) {
  std::vector<std::uint64_t> result;
  for (std::uint64_t i = 1; i <= n; ++i)
    result.push_back(i);
  return result;
}

TEST_CASE("everything that is reported arrives once, in order, with what it belongs to") {
  gated_driver driver;
  metrics_pusher pusher{driver, head()};
  for (std::uint64_t step = 1; step <= 1000; ++step) {
    pusher.report(row(step));
    pusher.record({step_id{step}, generation_id{1}, {0, 4}});
    pusher.applied(step_id{step});
  }
  pusher.flush();
  auto all = sum_of(driver.batches());
  CHECK_FALSE(driver.overlapped());
  CHECK(all.rows == up_to(1000));
  CHECK(all.ledger == up_to(1000));
  CHECK(all.applied == 1000);
  CHECK(all.dropped == 0);
  auto batches = driver.batches();
  REQUIRE(!batches.empty());
  REQUIRE(!batches[0].rows.empty());
  CHECK(batches[0].rows[0] == row(1));
}

TEST_CASE("flushing what has been flushed, or nothing, returns at once") {
  gated_driver driver;
  metrics_pusher pusher{driver, head()};
  pusher.flush();
  CHECK(driver.batches().empty());
  pusher.report(row(1));
  pusher.flush();
  pusher.flush();
  CHECK(driver.batches().size() == 1);
  pusher.report(row(2));
  pusher.flush();
  CHECK(sum_of(driver.batches()).rows == up_to(2));
}

TEST_CASE("a ledger entry alone is flushed") {
  gated_driver driver;
  metrics_pusher pusher{driver, head()};
  pusher.record({step_id{1}, generation_id{1}, {0, 4}});
  pusher.flush();
  CHECK(sum_of(driver.batches()).ledger == up_to(1));
}

TEST_CASE("another rank waits for a moment only, and what was reported before keeps its own") {
  gated_driver driver;
  driver.open(false);
  metrics_pusher pusher{driver, head()};
  pusher.report(row(1));
  driver.wait_for_begun(1);
  pusher.report(row(2));
  pusher.applied(step_id{2});
  pusher.set_rank(rank_id{5});
  pusher.set_rank(rank_id{6});
  pusher.report(row(3));
  pusher.applied(step_id{3});
  driver.open();
  pusher.flush();
  const auto batches = driver.batches();
  REQUIRE(batches.size() == 3);
  for (std::uint64_t i = 0; i < 3; ++i) {
    CHECK(batches[i].number == i + 1);
    CHECK(batches[i].rows == std::vector{row(i + 1)});
  }
  CHECK(batches[1].rank == rank_id{2});
  CHECK(batches[1].applied == step_id{2});
  CHECK(batches[2].rank == rank_id{6});
  CHECK(batches[2].applied == step_id{3});
}

TEST_CASE("a driver that does not answer makes nobody wait; what is too much is given up and counted") {
  gated_driver driver;
  driver.open(false);
  constexpr std::uint64_t n = 200'000;
  constexpr std::uint64_t limit = 65'536;
  metrics_pusher pusher{driver, head()};
  pusher.report(row(1));
  driver.wait_for_begun(1);
  // That these return at all is the point: the driver's answer comes only afterwards.
  for (std::uint64_t step = 2; step <= n; ++step) {
    pusher.report(row(step));
    pusher.record({step_id{step}, generation_id{1}, {0, 4}});
    pusher.applied(step_id{step});
  }
  driver.open();
  pusher.flush();
  auto all = sum_of(driver.batches());
  CHECK(all.rows == up_to(limit + 1));
  CHECK(all.ledger.size() == limit);
  CHECK(all.applied == n);
  CHECK(all.dropped == 2 * (n - 1 - limit));
  CHECK_FALSE(driver.overlapped());
  for (const auto& batch : driver.batches())
    CHECK(batch.rows.size() <= limit);
}

TEST_CASE("a driver that refuses hangs nobody, and what comes later is tried again") {
  gated_driver driver;
  driver.refuse(true);
  metrics_pusher pusher{driver, head()};
  for (std::uint64_t step = 1; step <= 10; ++step) {
    pusher.report(row(step));
    pusher.record({step_id{step}, generation_id{1}, {0, 4}});
    pusher.applied(step_id{step});
  }
  pusher.flush();
  CHECK(driver.batches().empty());
  driver.refuse(false);
  pusher.report(row(11));
  pusher.applied(step_id{11});
  pusher.flush();
  auto all = sum_of(driver.batches());
  CHECK(all.rows == std::vector<std::uint64_t>{11});
  CHECK(all.applied == 11);
}

TEST_CASE("destruction waits for the batch that is under way, and for nothing else") {
  gated_driver driver;
  driver.open(false);
  auto pusher = std::make_unique<metrics_pusher>(driver, head());
  pusher->report(row(1));
  driver.wait_for_begun(1);
  pusher->report(row(2));
  auto opener = std::thread{[&] { driver.open(); }};
  pusher.reset();
  opener.join();
  auto rows = sum_of(driver.batches()).rows;
  REQUIRE(!rows.empty());
  CHECK(rows == up_to(rows.size()));
}

TEST_CASE("destruction while idle, and right after the start, ends") {
  for (auto i = 0; i < 200; ++i) {
    gated_driver driver;
    metrics_pusher pusher{driver, head()};
    if (i % 2 == 1)
      pusher.report(row(1));
    if (i % 4 == 3)
      pusher.flush();
    CHECK(driver.batches().size() <= 1);
  }
}

} // namespace

} // namespace troupe::runtime

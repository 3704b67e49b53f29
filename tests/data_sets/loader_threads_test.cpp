#include "loader_worker.hpp"

#include <troupe/data/loader.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;
using namespace troupe::data;
using namespace troupe::testing;

namespace {

/// Samples that are their own numbers. Watches how many threads fetch.
class watched_numbers final : public data_set {
 public:
  explicit watched_numbers(std::uint64_t size) : size_(size) {}
  [[nodiscard]] std::uint64_t size() const noexcept override { return size_; }
  [[nodiscard]] std::span<const column_spec> columns() const noexcept override { return columns_; }
  [[nodiscard]] std::string fingerprint() const override { return "numbers"; }

  [[nodiscard]] std::uint64_t fetches() const {
    auto lock = std::lock_guard{mutex_};
    return fetches_;
  }

  [[nodiscard]] std::uint64_t most_at_once() const {
    auto lock = std::lock_guard{mutex_};
    return most_;
  }

  void await(std::uint64_t fetches) const {
    auto lock = std::unique_lock{mutex_};
    changed_.wait(lock, [&] { return fetches_ >= fetches; });
  }

  /// Until this many have been there at once, nobody leaves.
  std::uint64_t wait_for = 0;
  /// A sample that cannot be fetched.
  std::uint64_t bad = ~std::uint64_t{0};

 protected:
  [[nodiscard]] expected<void> read(std::span<const std::uint64_t> samples, batch& out) const override {
    {
      auto lock = std::unique_lock{mutex_};
      most_ = std::max(most_, ++inside_);
      changed_.notify_all();
      changed_.wait(lock, [&] { return most_ >= wait_for; });
    }
    std::this_thread::yield();
    std::ranges::copy(samples, out.values<std::int64_t>("number").begin());
    auto lock = std::lock_guard{mutex_};
    --inside_;
    ++fetches_;
    changed_.notify_all();
    if (std::ranges::find(samples, bad) != samples.end())
      return fail(errc::damaged, "record " + std::to_string(bad) + " is damaged");
    return {};
  }

 private:
  std::uint64_t size_;
  std::vector<column_spec> columns_{{"number", dtype::i64, {}, {}}};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::uint64_t inside_ = 0;
  mutable std::uint64_t most_ = 0;
  mutable std::uint64_t fetches_ = 0;
};

} // namespace

TEST_CASE("several threads fetch at once, and as many as were asked for") {
  auto set = std::make_shared<watched_numbers>(1000);
  set->wait_for = 5; // four threads, and the one that asks
  auto w = worker{set, {.batch_samples = 64, .prefetch_shards = 6, .threads = 4}};
  for (std::uint64_t step = 1; step <= 20; ++step)
    for (std::uint32_t v = 0; v < shards; ++v)
      CHECK(w.get(step, v) == w.samples_of(step, v));
  CHECK(set->most_at_once() == 5);
}

TEST_CASE("more threads than shards to fetch ahead are not used") {
  auto set = std::make_shared<watched_numbers>(1000);
  {
    auto w = worker{set, {.batch_samples = 64, .prefetch_shards = 2, .threads = 50}};
    for (std::uint64_t step = 1; step <= 50; ++step)
      for (std::uint32_t v = 0; v < shards; ++v)
        CHECK(w.get(step, v) == w.samples_of(step, v));
    // Two of the loader, and this one.
    CHECK(std::distance(std::filesystem::directory_iterator{"/proc/self/task"}, {}) <= 3);
  }
  CHECK(set->most_at_once() <= 3);
}

TEST_CASE("several threads fetch no more ahead than one") {
  auto set = std::make_shared<watched_numbers>(1000);
  {
    auto w = worker{set, {.batch_samples = 64, .prefetch_shards = 3, .threads = 3}};
    for (std::uint64_t step = 1; step <= 5; ++step)
      for (std::uint32_t v = 2; v < 6; ++v)
        (void)w.get(step, v);
    // 20 that were requested, and three ahead.
    set->await(23);
  }
  // And the predictions beyond the worker's range in the first step.
  CHECK(set->fetches() <= 26);
}

TEST_CASE("shards that move between workers have their own samples, with several threads, too") {
  for (std::uint64_t walk = 0; walk < 20; ++walk) {
    CAPTURE(walk);
    auto w = worker{std::make_shared<watched_numbers>(777),
                    {.batch_samples = 40, .prefetch_shards = 6, .threads = 1 + walk % 5, .last_step = 60}};
    std::uint64_t state = walk * 2 + 1;
    auto draw = [&](std::uint64_t below) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      return static_cast<std::uint32_t>((state >> 33U) % below);
    };
    std::uint32_t first = 0;
    std::uint32_t last = 4;
    for (std::uint64_t step = 1; step <= 60; ++step) {
      if (draw(4) == 0) { // a regroup, in the middle of the step
        for (auto v = first, end = first + draw(last - first + 1); v < end; ++v)
          CHECK(w.get(step, v) == w.samples_of(step, v));
        first = draw(shards);
        last = first + 1 + draw(shards - first);
      }
      for (auto v = first; v < last; ++v)
        CHECK(w.get(step, v) == w.samples_of(step, v));
    }
  }
}

TEST_CASE("an error is reported at the shard that needs the sample, with several threads, too") {
  auto set = std::make_shared<watched_numbers>(500);
  set->bad = worker{set, {.batch_samples = 40, .prefetch_shards = 0}}.samples_of(3, 2).front();
  auto w = worker{set, {.batch_samples = 40, .prefetch_shards = 6, .threads = 3}};
  std::size_t errors = 0;
  for (std::uint64_t step = 1; step <= 5; ++step)
    for (std::uint32_t v = 0; v < 4; ++v) {
      auto got = w.ask(step, v);
      auto needs = std::ranges::count(w.samples_of(step, v), set->bad) > 0;
      REQUIRE(got.has_value() == !needs);
      errors += needs ? 1 : 0;
    }
  CHECK(errors > 0);
}

TEST_CASE("a loader that is destroyed waits for its threads, and they fetch nothing more") {
  for (int i = 0; i < 50; ++i) {
    auto set = std::make_shared<watched_numbers>(1000);
    std::uint64_t before = 0;
    {
      auto w = worker{set, {.batch_samples = 64, .prefetch_shards = 8, .threads = 4}};
      for (int v = 0; v < i % 5; ++v)
        (void)w.get(1, static_cast<std::uint32_t>(v));
      w = worker{set, {.batch_samples = 64, .prefetch_shards = 8, .threads = 4}};
      (void)w.get(1, 0);
    }
    before = set->fetches();
    CHECK(set.use_count() == 1);
    CHECK(std::distance(std::filesystem::directory_iterator{"/proc/self/task"}, {}) == 1);
    CHECK(set->fetches() == before);
  }
}

TEST_CASE("an order in blocks of nothing is refused") {
  for (const auto& order : {shuffle::blocks{0, 4}, shuffle::blocks{4, 0}})
    CHECK_THROWS_AS((loader{std::make_shared<watched_numbers>(100), {.batch_samples = 10, .order = order}, shards, 1}),
                    exception);
}

TEST_CASE("a loader without threads is refused") {
  CHECK_THROWS_WITH_AS((loader{std::make_shared<watched_numbers>(100), {.batch_samples = 10, .threads = 0}, shards, 1}),
                       "a loader with 0 threads: set loader_options::prefetch_shards to 0 to fetch nothing ahead",
                       exception);
}

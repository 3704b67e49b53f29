#include "loader_worker.hpp"
#include "prefetch_plan.hpp"

#include <troupe/data/loader.hpp>
#include <troupe/data_order.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

using namespace troupe;
using namespace troupe::data;
using namespace troupe::testing;

namespace {

/// Samples that are their own numbers; counts fetches, and fails for one sample.
class numbers final : public data_set {
 public:
  explicit numbers(std::uint64_t size) : size_(size) {}
  [[nodiscard]] std::uint64_t size() const noexcept override { return size_; }
  [[nodiscard]] std::span<const column_spec> columns() const noexcept override { return columns_; }
  [[nodiscard]] std::string fingerprint() const override { return "numbers"; }

  /// Waits until `count` fetches have ended.
  void await(std::uint64_t fetches) const {
    auto lock = std::unique_lock{mutex_};
    ended_.wait(lock, [&] { return fetches_ >= fetches; });
  }

  [[nodiscard]] std::uint64_t fetches() const {
    auto lock = std::lock_guard{mutex_};
    return fetches_;
  }

  std::uint64_t bad = ~std::uint64_t{0};
  bool throws = false;

 protected:
  [[nodiscard]] expected<void> read(std::span<const std::uint64_t> samples, batch& out) const override {
    std::ranges::copy(samples, out.values<std::int64_t>("number").begin());
    {
      auto lock = std::lock_guard{mutex_};
      ++fetches_;
    }
    ended_.notify_all();
    if (std::ranges::find(samples, bad) == samples.end())
      return {};
    if (throws)
      throw std::runtime_error{"no such record"};
    return fail(errc::damaged, "record " + std::to_string(bad) + " is damaged");
  }

 private:
  std::uint64_t size_;
  std::vector<column_spec> columns_{{"number", dtype::i64, {}, {}}};
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  mutable std::uint64_t fetches_ = 0;
};

std::vector<shard_of_step> shards_of(std::uint64_t step, std::uint32_t first, std::uint32_t last) {
  std::vector<shard_of_step> result;
  for (; first < last; ++first)
    result.push_back({step, first});
  return result;
}

} // namespace

TEST_CASE("a loader returns each shard's samples, whatever it prefetches") {
  for (std::size_t ahead : {0u, 1u, 2u, 5u, 100u}) {
    CAPTURE(ahead);
    auto w = worker{std::make_shared<numbers>(1000), {.batch_samples = 64, .prefetch_shards = ahead, .last_step = 40}};
    for (std::uint64_t step = 1; step <= 40; ++step)
      for (std::uint32_t v = 2; v < 6; ++v)
        CHECK(w.get(step, v) == w.samples_of(step, v));
    auto counts = w.batches.fetched();
    CHECK(counts.ahead + counts.late == 160);
    CHECK((ahead > 0 || counts.ahead == 0));
  }
}

TEST_CASE("if computing takes longer than fetching, every shard after the first step is prefetched in time") {
  auto set = std::make_shared<numbers>(1000);
  auto w = worker{set, {.batch_samples = 64, .prefetch_shards = 6, .last_step = 0}};
  std::uint64_t asked = 0;
  for (std::uint64_t step = 1; step <= 20; ++step)
    for (std::uint32_t v = 2; v < 6; ++v) {
      (void)w.get(step, v);
      ++asked;
      if (step > 1)
        set->await(asked + 4); // of six, as two may be the predictions of the first step
    }
  CHECK(w.batches.fetched().ahead >= 19 * 4 - 1);
}

TEST_CASE("only requested shards and a bounded number ahead are fetched") {
  auto set = std::make_shared<numbers>(1000);
  auto w = worker{set, {.batch_samples = 64, .prefetch_shards = 3, .last_step = 0}};
  for (std::uint64_t step = 1; step <= 5; ++step)
    for (std::uint32_t v = 2; v < 6; ++v)
      (void)w.get(step, v);
  // 20 that were requested, three ahead, and the prediction beyond the worker's range in the first step.
  set->await(23);
  w = worker{set, {.batch_samples = 64, .prefetch_shards = 0, .last_step = 0}};
  CHECK(set->fetches() <= 25);
}

TEST_CASE("nothing is fetched beyond the last step") {
  auto set = std::make_shared<numbers>(1000);
  {
    auto w = worker{set, {.batch_samples = 64, .prefetch_shards = 100, .last_step = 3}};
    for (std::uint64_t step = 1; step <= 3; ++step)
      for (std::uint32_t v = 0; v < shards; ++v)
        CHECK(w.get(step, v) == w.samples_of(step, v));
  }
  CHECK(set->fetches() == 3 * shards);
}

TEST_CASE("shards that move between workers have their own samples, also when a step is repeated") {
  for (std::uint64_t seed_of_walk = 0; seed_of_walk < 20; ++seed_of_walk) {
    CAPTURE(seed_of_walk);
    auto w = worker{std::make_shared<numbers>(777), {.batch_samples = 40, .prefetch_shards = 6, .last_step = 60}};
    std::uint64_t state = seed_of_walk * 2 + 1;
    auto draw = [&](std::uint64_t below) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      return (state >> 33u) % below;
    };
    std::uint32_t first = 0;
    std::uint32_t last = 4;
    for (std::uint64_t step = 1; step <= 60; ++step) {
      if (draw(4) == 0) { // a regroup, in the middle of the step
        for (auto v = first, end = first + static_cast<std::uint32_t>(draw(last - first + 1)); v < end; ++v)
          CHECK(w.get(step, v) == w.samples_of(step, v));
        first = static_cast<std::uint32_t>(draw(shards));
        last = first + 1 + static_cast<std::uint32_t>(draw(shards - first));
      }
      for (auto v = first; v < last; ++v)
        CHECK(w.get(step, v) == w.samples_of(step, v));
    }
  }
}

TEST_CASE("an error is reported at the shard that needs the sample, and not before") {
  for (auto throws : {false, true})
    for (std::size_t ahead : {0u, 4u}) {
      auto set = std::make_shared<numbers>(500);
      auto probe = worker{set, {.batch_samples = 40, .prefetch_shards = 0, .last_step = 0}};
      set->bad = probe.samples_of(3, 2).front();
      set->throws = throws;
      auto w = worker{set, {.batch_samples = 40, .prefetch_shards = ahead, .last_step = 10}};
      for (std::uint64_t step = 1; step <= 5; ++step)
        for (std::uint32_t v = 0; v < 4; ++v) {
          auto got = w.ask(step, v);
          auto needs = std::ranges::count(w.samples_of(step, v), set->bad) > 0;
          REQUIRE(got.has_value() == !needs);
          if (needs) {
            CHECK(got.error().code == (throws ? errc::user_error : errc::damaged));
            CHECK(got.error().message.find(throws ? "no such record" : "is damaged") != std::string::npos);
          }
        }
    }
}

TEST_CASE("without drop or repeat batches continue across epochs, and each epoch has every sample once") {
  auto w = worker{std::make_shared<numbers>(50), {.batch_samples = 32, .last_step = 0}};
  CHECK(w.batches.epoch_samples() == 50);
  std::map<std::uint64_t, int> seen;
  for (std::uint64_t step = 1; step <= 25; ++step) // 25 x 32 = 16 x 50
    for (std::uint32_t v = 0; v < shards; ++v)
      for (auto sample : w.get(step, v))
        ++seen[sample];
  CHECK(seen.size() == 50);
  CHECK(std::ranges::all_of(seen, [](const auto& x) { return x.second == 16; }));
}

TEST_CASE("drop leaves out samples that do not fill a batch, repeat fills it up; different samples in each epoch") {
  for (auto end : {epoch_end::drop, epoch_end::repeat}) {
    auto w = worker{std::make_shared<numbers>(50), {.batch_samples = 16, .at_epoch_end = end, .last_step = 0}};
    const auto steps = std::uint64_t{end == epoch_end::drop ? 3u : 4u};
    CHECK(w.batches.epoch_samples() == steps * 16);
    std::vector<std::map<std::uint64_t, int>> epochs;
    for (std::uint64_t step = 1; step <= 5 * steps; ++step) {
      if ((step - 1) % steps == 0)
        epochs.emplace_back();
      for (std::uint32_t v = 0; v < shards; ++v)
        for (auto sample : w.get(step, v))
          ++epochs.back()[sample];
    }
    for (const auto& epoch : epochs) {
      CHECK(epoch.size() == (end == epoch_end::drop ? 48 : 50));
      auto twice = std::ranges::count_if(epoch, [](const auto& x) { return x.second == 2; });
      CHECK(twice == (end == epoch_end::drop ? 0 : 14));
      CHECK(std::ranges::all_of(epoch, [](const auto& x) { return x.second <= 2 && x.first < 50; }));
    }
    CHECK(epochs[0] != epochs[1]);
  }
}

TEST_CASE("with other orders, epochs that begin with a batch leave out or repeat the same number of samples") {
  for (const auto& order : {sample_order{shuffle::blocks{8, 2}}, sample_order{shuffle::none{}}})
    for (auto end : {epoch_end::drop, epoch_end::repeat}) {
      auto w = worker{std::make_shared<numbers>(50), {.batch_samples = 16, .at_epoch_end = end, .order = order}};
      const auto steps = std::uint64_t{end == epoch_end::drop ? 3u : 4u};
      CHECK(w.batches.plan(1).order == order);
      std::vector<std::uint64_t> first;
      for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
        std::vector<std::uint64_t> all;
        for (std::uint64_t step = epoch * steps + 1; step <= (epoch + 1) * steps; ++step)
          for (std::uint32_t v = 0; v < shards; ++v)
            std::ranges::copy(w.get(step, v), std::back_inserter(all));
        std::ranges::sort(all);
        const auto repeated = std::ranges::unique(all);
        CHECK(repeated.size() == (end == epoch_end::drop ? 0 : 14));
        all.erase(repeated.begin(), repeated.end());
        CHECK(all.size() == (end == epoch_end::drop ? 48 : 50));
        if (epoch == 0)
          first = all;
        else if (end == epoch_end::drop)
          CHECK((all == first) == std::holds_alternative<shuffle::none>(order));
      }
    }
}

TEST_CASE("a plan takes a data set, or its description by hand") {
  auto set = numbers{50};
  auto from_set = step_plan{.data = set, .batch_samples = 8};
  CHECK(from_set.data.samples == 50);
  CHECK(from_set.data.fingerprint == "numbers");
  auto by_hand = step_plan{.data = {50, "numbers"}, .batch_samples = 8};
  CHECK(by_hand.data.samples == 50);
  CHECK(by_hand.data.fingerprint == "numbers");
  static_assert(!std::is_convertible_v<std::vector<float>, data_description>, "it has no fingerprint");
}

TEST_CASE("the plan identifies the data, including the epoch end") {
  auto plan_of = [](epoch_end end) {
    return loader{std::make_shared<numbers>(50), {.batch_samples = 16, .at_epoch_end = end}, shards, seed}.plan(7);
  };
  auto plan = plan_of(epoch_end::run_on);
  CHECK(plan.data.samples == 50);
  CHECK(plan.data.fingerprint == "numbers");
  CHECK(plan.batch_samples == 16);
  CHECK(plan.gradient_elements == 7);
  CHECK(plan_of(epoch_end::drop).data.fingerprint != plan.data.fingerprint);
  CHECK(plan_of(epoch_end::repeat).data.fingerprint != plan_of(epoch_end::drop).data.fingerprint);
}

TEST_CASE("a data set that is too small is refused before the first step") {
  auto message = [](std::uint64_t size, loader_options options) -> std::string {
    try {
      loader{std::make_shared<numbers>(size), options, shards, seed};
    } catch (const exception& x) {
      return x.what();
    }
    return "";
  };
  CHECK(message(10, {.batch_samples = 64}) == "a data set of 10 samples is smaller than a batch of 64: use a smaller "
                                              "batch, or epoch_end::repeat");
  CHECK_FALSE(message(10, {.batch_samples = 64, .at_epoch_end = epoch_end::drop}).empty());
  CHECK_FALSE(message(0, {.batch_samples = 1}).empty());
  CHECK_FALSE(message(10, {}).empty());
  auto w = worker{std::make_shared<numbers>(10), {.batch_samples = 64, .at_epoch_end = epoch_end::repeat}};
  std::map<std::uint64_t, int> seen;
  for (std::uint32_t v = 0; v < shards; ++v)
    for (auto sample : w.get(1, v))
      ++seen[sample];
  CHECK(seen.size() == 10);
  CHECK(std::ranges::all_of(seen, [](const auto& x) { return x.second == 6 || x.second == 7; }));
}

TEST_CASE("a prefetch plan predicts the next shards from those of the last step") {
  auto plan = prefetch_plan{8, 10};
  CHECK(plan.next(3).empty());
  plan.asked({1, 2});
  CHECK(plan.next(3) == shards_of(1, 3, 6)); // nothing is known yet: ranges are contiguous
  plan.asked({1, 3});
  plan.asked({2, 2});
  CHECK(plan.next(3) == std::vector<shard_of_step>{{2, 3}, {3, 2}, {3, 3}});
  plan.asked({2, 3});
  CHECK(plan.next(2) == shards_of(3, 2, 4));
  // The group changes in step 3, which is repeated with other shards.
  plan.asked({3, 2});
  plan.asked({3, 0});
  CHECK(plan.next(2) == shards_of(3, 1, 3));
  for (std::uint32_t v = 1; v < 4; ++v)
    plan.asked({3, v});
  plan.asked({4, 0});
  CHECK(plan.next(5) == std::vector<shard_of_step>{{4, 1}, {4, 2}, {4, 3}, {5, 0}, {5, 1}});
  // Never beyond the last step.
  for (std::uint64_t step = 5; step <= 10; ++step)
    for (std::uint32_t v = 0; v < 4; ++v)
      plan.asked({step, v});
  CHECK(plan.next(5).empty());
}

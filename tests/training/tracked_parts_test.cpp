#include <troupe/training/loss_scale.hpp>
#include <troupe/training/moving_average.hpp>
#include <troupe/training/plateau.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::training;

namespace {

constexpr auto infinite = std::numeric_limits<float>::infinity();

std::map<std::string, std::vector<std::byte>> content_of(const tracked_state& state) {
  std::map<std::string, std::vector<std::byte>> result;
  for (std::size_t i = 0; i < state.tensors().size(); ++i) {
    const auto& tensor = state.tensors()[i];
    std::vector<std::byte> bytes(tensor.spec.size_bytes());
    state.copy_out(i, 0, bytes);
    result.emplace(tensor.spec.name, std::move(bytes));
  }
  return result;
}

/// What a worker that joins does: the same program makes its objects, and their tracked memory is filled.
void fill(tracked_state& state, const std::map<std::string, std::vector<std::byte>>& content) {
  for (std::size_t i = 0; i < state.tensors().size(); ++i)
    state.copy_in(i, 0, content.at(state.tensors()[i].spec.name));
}

} // namespace

TEST_CASE("the loss scale shrinks after each gradient that is not finite, and grows after many that are") {
  tracked_state state;
  auto scale = loss_scale{state, {.first = 8, .growth_steps = 3}};
  const auto good = std::vector<float>(10, 1);
  const auto bad = std::vector<float>{1, infinite, 2};
  CHECK(scale.value() == 8);
  CHECK_FALSE(scale.update(bad));
  CHECK(scale.before() == 8);
  CHECK(scale.value() == 4);
  CHECK(scale.update(good));
  CHECK(scale.update(good));
  CHECK(scale.value() == 4);
  CHECK(scale.update(good));
  CHECK(scale.before() == 4);
  CHECK(scale.value() == 8);
  // The row begins anew.
  CHECK(scale.update(good));
  CHECK(scale.update(good));
  CHECK_FALSE(scale.update(bad));
  CHECK(scale.update(good));
  CHECK(scale.update(good));
  CHECK(scale.value() == 4);
}

TEST_CASE("the loss scale stays a number that a float can have") {
  tracked_state state;
  auto scale = loss_scale{state, {.first = 1, .growth_steps = 1}};
  for (int i = 0; i < 1000; ++i)
    CHECK(scale.update({}));
  CHECK(static_cast<float>(scale.value()) < infinite);
  for (int i = 0; i < 1000; ++i)
    CHECK_FALSE(scale.update(std::vector<float>{infinite}));
  CHECK(1 / static_cast<float>(scale.value()) < infinite);
  CHECK(scale.value() > 0);
}

TEST_CASE("a loss scale that would round, or never settle, is refused") {
  tracked_state state;
  CHECK_THROWS_AS((loss_scale{state, {.first = 1000}}), exception);
  CHECK_THROWS_AS((loss_scale{state, {.growth = 1.5}}), exception);
  CHECK_THROWS_AS((loss_scale{state, {.growth = 0.5}}), exception);
  CHECK_THROWS_AS((loss_scale{state, {.backoff = 1}}), exception);
  CHECK_THROWS_AS((loss_scale{state, {.backoff = 0}}), exception);
  CHECK_THROWS_AS((loss_scale{state, {.growth_steps = 0}}), exception);
  CHECK(state.tensors().empty());
}

TEST_CASE("the factor falls once a metric has not improved for longer than the patience") {
  tracked_state state;
  auto rate = plateau{state, {.factor = 0.5, .patience = 2, .smallest = 0.3}};
  CHECK_FALSE(rate.observe(10));
  CHECK_FALSE(rate.observe(9));
  // Not enough to count.
  CHECK_FALSE(rate.observe(9 - 1e-6));
  CHECK_FALSE(rate.observe(std::numeric_limits<double>::quiet_NaN()));
  CHECK(rate.observe(9));
  CHECK(rate.factor() == 0.5);
  for (int i = 0; i < 2; ++i)
    CHECK_FALSE(rate.observe(9));
  CHECK(rate.observe(9));
  CHECK(rate.factor() == 0.3);
  for (int i = 0; i < 10; ++i)
    CHECK_FALSE(rate.observe(9));
}

TEST_CASE("a metric that should rise counts when it does, and nothing counts while the factor cools down") {
  tracked_state state;
  auto rate = plateau{state, {.is = better::higher, .patience = 0, .cooldown = 2}};
  CHECK_FALSE(rate.observe(1));
  CHECK_FALSE(rate.observe(2));
  CHECK(rate.observe(1));
  CHECK_FALSE(rate.observe(1));
  CHECK_FALSE(rate.observe(1));
  CHECK(rate.observe(1));
  CHECK(rate.factor() == doctest::Approx(0.01));
  tracked_state other;
  CHECK_THROWS_AS((plateau{other, {.factor = 1}}), exception);
}

TEST_CASE("a moving average follows the weights, and changes places with them") {
  tracked_state state;
  std::vector<float> weights{1, 2};
  auto average = moving_average{state, "average", weights, 0.75};
  CHECK(average.values()[0] == 1);
  weights = {5, 6};
  average.update();
  CHECK(average.values()[0] == 2);
  CHECK(average.values()[1] == 3);
  average.exchange_with(weights);
  CHECK(weights == std::vector<float>{2, 3});
  CHECK(average.values()[0] == 5);
  average.exchange_with(weights);
  CHECK(weights == std::vector<float>{5, 6});
  std::vector<float> others(2);
  CHECK_THROWS_AS(average.exchange_with(others), exception);
  CHECK_THROWS_AS((moving_average{state, "other", weights, 1}), exception);
}

TEST_CASE("all that these parts know is in the tracked state") {
  struct parts {
    tracked_state state;
    std::vector<float> weights{1, 2, 3};
    loss_scale scale{state, {.growth_steps = 2}};
    plateau rate{state, {.patience = 1, .cooldown = 1}};
    moving_average average{state, "average", weights, 0.9};

    void take_step(int number) {
      weights[0] += static_cast<float>(number);
      (void)scale.update(std::vector<float>{number % 5 == 0 ? infinite : 1.0f});
      (void)rate.observe(1.0 / (1 + number % 3));
      average.update();
    }
  };
  parts whole;
  for (int number = 1; number <= 7; ++number)
    whole.take_step(number);
  parts joined;
  fill(joined.state, content_of(whole.state));
  joined.weights = whole.weights;
  for (int number = 8; number <= 20; ++number) {
    whole.take_step(number);
    joined.take_step(number);
  }
  CHECK(content_of(joined.state) == content_of(whole.state));
  CHECK(joined.scale.value() == whole.scale.value());
  CHECK(joined.rate.factor() == whole.rate.factor());
}

#include "worker/state/state_stager.hpp"

#include <doctest/doctest.h>
#include <hidden_memory.hpp>
#include <rank_group.hpp>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <future>
#include <limits>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <tuple>

namespace troupe::runtime {

namespace {

using collectives::communicator;
using collectives::testing::swept_transport;
using namespace std::chrono_literals;

constexpr auto boundary = step_id{7};

/// Where the tensors of a worker lie.
enum class residence { here, hidden };

/// The tensors and values of one worker.
struct replica {
  explicit replica(const std::vector<std::size_t>& sizes, residence where = residence::here) {
    for (auto size : sizes) {
      tensors.emplace_back(size);
      auto name = "tensor " + std::to_string(tensors.size());
      if (where == residence::here) {
        state.track(name, tensors.back());
        continue;
      }
      hidden.push_back(std::make_shared<testing::hidden_memory>(size));
      state.track(name, dtype::u8, {size}, hidden.back());
    }
  }

  /// Another pattern for each seed.
  void fill(std::uint32_t seed) {
    for (auto& tensor : tensors)
      for (auto& x : tensor)
        x = static_cast<std::uint8_t>((seed = seed * 1664525u + 1013904223u) >> 24);
    for (auto from = tensors.begin(); const auto& each : hidden)
      each->assign(*from++);
    state.values() = {{"seed", seed}, {"name", "k\xc3\xb6ln"}, {"rate", 0.1}, {"list", {1, nullptr, "x"}}};
    extras.last_metrics = {{"loss", 1.0 / 3 + seed}};
  }

  std::list<std::vector<std::uint8_t>> tensors;
  std::vector<std::shared_ptr<testing::hidden_memory>> hidden;
  tracked_state state;
  transferred_extras extras;
};

const std::vector<std::size_t> odd_sizes = {1, (std::size_t{9} << 20) + 3, 0, 4097, std::size_t{4} << 20};

/// A staging group over `Transport`, whose ranks are formed by whoever calls.
template <swept_transport Transport>
class staging_group {
 public:
  staging_group(std::uint32_t sources, std::uint32_t joiners)
      : sources_(sources), joiners_(joiners), meeting_(Transport, sources + joiners, {120s, generation_id{4}}) {}

  expected<std::unique_ptr<communicator>> form(std::uint32_t rank) { return meeting_.form(rank); }

  staging_settings settings_of(std::uint32_t source) {
    staging_settings result;
    result.rank = rank_id{source};
    result.sources = sources_;
    result.joiners = joiners_;
    result.step = boundary;
    result.form = [this, source](const std::stop_token&) { return form(source); };
    return result;
  }

  staged_state joiner(std::uint32_t which = 0) { return {value_or_throw(form(sources_ + which)), sources_}; }

 private:
  std::uint32_t sources_;
  std::uint32_t joiners_;
  collectives::testing::meeting meeting_;
};

/// One for each transport.
#define TROUPE_STAGING_GROUPS                                                                                          \
  staging_group<swept_transport::tcp>, staging_group<swept_transport::shm>, staging_group<swept_transport::hierarchical>

/// The thread leaves by itself; nothing tells when.
void wait_until_idle(const state_stager& stager) {
  while (stager.is_active())
    std::this_thread::yield();
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& x) {
  return std::as_bytes(std::span{x});
}

template <class Frame>
Frame next(staged_state& joiner) {
  return std::get<Frame>(value_or_throw(joiner.next()));
}

error error_of(const expected<staged_frame>& x) {
  return x ? error{} : x.error();
}

/// What a joiner of the tests does: takes all there is.
struct joined {
  std::string sha256;
  nlohmann::json values;
  metric_map metrics;
  step_id snapshot;
  step_id boundary;
  std::vector<std::uint64_t> steps;
};

template <class Group>
joined join(Group& group, std::uint32_t which, const std::vector<std::size_t>& sizes,
            residence where = residence::here) {
  auto result = joined{};
  auto mine = replica{sizes, where};
  auto joiner = group.joiner(which);
  result.snapshot = value_or_throw(joiner.receive(mine.state, mine.extras));
  result.sha256 = mine.state.sha256();
  result.values = mine.state.values();
  result.metrics = mine.extras.last_metrics;
  for (;;) {
    auto frame = value_or_throw(joiner.next());
    if (auto* gradient = std::get_if<gradient_frame>(&frame))
      result.steps.push_back(gradient->step.value);
    if (auto* end = std::get_if<end_frame>(&frame)) {
      result.boundary = end->boundary;
      return result;
    }
  }
}

/// `sources` members and `joiners` go through one group; the state changes as soon as it was staged.
template <class Group>
void check_staging(std::list<state_stager>& stagers, std::uint32_t joiners, const std::vector<std::size_t>& sizes,
                   std::uint32_t seed, residence from = residence::here, residence to = residence::here) {
  auto sources = static_cast<std::uint32_t>(stagers.size());
  CAPTURE(sources);
  CAPTURE(joiners);
  auto group = Group{sources, joiners};
  auto member = replica{sizes, from};
  member.fill(seed);
  auto sha256 = member.state.sha256();
  auto values = member.state.values();
  auto metrics = member.extras.last_metrics;
  auto results = std::vector<std::future<joined>>{};
  for (std::uint32_t i = 0; i < joiners; ++i)
    results.push_back(std::async(std::launch::async, [&, i] { return join(group, i, sizes, to); }));
  for (std::uint32_t rank = 0; auto& stager : stagers)
    stager.begin(group.settings_of(rank++), member.state, member.extras);
  member.fill(seed + 1);
  for (auto& stager : stagers) {
    stager.push_gradient(step_id{8}, bytes_of(std::vector<float>(1000)));
    stager.push_gradient(step_id{9}, bytes_of(std::vector<float>(1000)));
    stager.push_end(step_id{9}, 0, 0);
  }
  for (auto& result : results) {
    auto got = result.get();
    CHECK(got.sha256 == sha256);
    CHECK(got.values == values);
    CHECK(got.metrics == metrics);
    CHECK(got.snapshot == boundary);
    CHECK(got.steps == std::vector<std::uint64_t>{8, 9});
    CHECK(got.boundary == step_id{9});
  }
  for (auto& stager : stagers) {
    wait_until_idle(stager);
    CHECK(stager.last_error() == error{});
  }
}

} // namespace

TEST_CASE_TEMPLATE("joiners get the state of the boundary, however many give it and whatever becomes of it there",
                   Group, TROUPE_STAGING_GROUPS) {
  for (std::uint32_t sources : {1, 2, 3})
    for (std::uint32_t joiners : {1, 2}) {
      auto stagers = std::list<state_stager>(sources);
      check_staging<Group>(stagers, joiners, odd_sizes, sources * 10 + joiners);
    }
}

TEST_CASE_TEMPLATE("a state that no pointer leads to is staged, and comes to joiners, like any other", Group,
                   TROUPE_STAGING_GROUPS) {
  for (auto from : {residence::here, residence::hidden})
    for (auto to : {residence::here, residence::hidden}) {
      auto stagers = std::list<state_stager>(2);
      check_staging<Group>(stagers, 2, odd_sizes, 5, from, to);
    }
}

TEST_CASE_TEMPLATE("a state whose copy fails is not staged, and training goes on", Group, TROUPE_STAGING_GROUPS) {
  auto group = Group{1, 1};
  auto member = replica{{100}, residence::hidden};
  member.hidden[0]->trouble = {errc::io_error, "GPU 0: no such luck"};
  auto stager = state_stager{};
  stager.begin(group.settings_of(0), member.state, member.extras);
  CHECK_FALSE(stager.is_active());
  CHECK(stager.last_error().message.find("GPU 0: no such luck") != std::string::npos);
}

TEST_CASE("a state is transferred from and to memory that no pointer leads to") {
  for (auto from : {residence::here, residence::hidden})
    for (auto to : {residence::here, residence::hidden}) {
      auto ranks = collectives::testing::rank_group{swept_transport::shm, 3};
      auto expected = replica{odd_sizes};
      expected.fill(9);
      std::ignore = ranks.run([&](communicator& group) {
        auto is_joiner = group.rank() == rank_id{1};
        auto mine = replica{odd_sizes, is_joiner ? to : from};
        if (!is_joiner)
          mine.fill(9);
        const auto joiners = std::vector{rank_id{1}};
        value_or_throw(transfer_state(group, joiners, mine.state, mine.extras));
        CHECK(mine.state.sha256() == expected.state.sha256());
        CHECK(mine.extras.last_metrics == expected.extras.last_metrics);
        return 0;
      });
    }
}

TEST_CASE_TEMPLATE("members without a share leave at once and disturb nobody", Group, TROUPE_STAGING_GROUPS) {
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    auto stagers = std::list<state_stager>(3);
    check_staging<Group>(stagers, 2, {}, seed);
    check_staging<Group>(stagers, 1, {5}, seed);
  }
}

TEST_CASE_TEMPLATE("a stager serves one group after the other, with states of other sizes", Group,
                   TROUPE_STAGING_GROUPS) {
  auto stagers = std::list<state_stager>(2);
  check_staging<Group>(stagers, 1, {100}, 1);
  check_staging<Group>(stagers, 1, odd_sizes, 2);
  check_staging<Group>(stagers, 2, {17, 3}, 3);
}

TEST_CASE_TEMPLATE("metrics and values that are no numbers reach the joiner", Group, TROUPE_STAGING_GROUPS) {
  auto group = Group{1, 1};
  auto member = replica{{3}};
  member.state.values() = {{"best", std::numeric_limits<double>::infinity()}, {"whole", 2.0}};
  member.extras.last_metrics = {{"loss", std::nan("")}};
  auto stager = state_stager{};
  stager.begin(group.settings_of(0), member.state, member.extras);
  auto mine = replica{{3}};
  auto joiner = group.joiner();
  REQUIRE(joiner.receive(mine.state, mine.extras));
  CHECK(std::isnan(mine.extras.last_metrics.at("loss")));
  CHECK(mine.state.values() == member.state.values());
  CHECK(mine.state.sha256() == member.state.sha256());
}

TEST_CASE_TEMPLATE("gradients, evaluations and the end come in their order, with their bytes", Group,
                   TROUPE_STAGING_GROUPS) {
  auto group = Group{1, 1};
  auto member = replica{{100}};
  auto stager = state_stager{};
  stager.begin(group.settings_of(0), member.state, member.extras);
  auto large = std::vector<std::uint32_t>((std::size_t{9} << 18) + 1);
  for (std::uint32_t i = 0; auto& x : large)
    x = 2654435761u * i++;
  auto copy = large;
  stager.push_gradient(step_id{8}, bytes_of(large));
  // It is the stager's own now.
  std::ranges::fill(large, 0u);
  stager.push_evaluation(std::vector{0.5, -1.0 / 3});
  stager.push_evaluation({});
  stager.push_gradient(step_id{9}, bytes_of(std::vector<std::uint32_t>{1, 2, 3}));
  auto joiner = group.joiner();
  REQUIRE(joiner.receive(member.state, member.extras));
  {
    auto first = next<gradient_frame>(joiner);
    CHECK(first.step == step_id{8});
    // A joiner knows how far it is behind.
    CHECK(first.latest == step_id{9});
    CHECK(std::ranges::equal(first.bytes, bytes_of(copy)));
    CHECK(reinterpret_cast<std::uintptr_t>(first.bytes.data()) % 64 == 0);
  }
  CHECK(next<evaluation_frame>(joiner).values == std::vector{0.5, -1.0 / 3});
  CHECK(next<evaluation_frame>(joiner).values.empty());
  {
    auto second = next<gradient_frame>(joiner);
    CHECK(second.step == step_id{9});
    CHECK(second.latest == step_id{9});
    CHECK(std::ranges::equal(second.bytes, bytes_of(std::vector<std::uint32_t>{1, 2, 3})));
  }
  // Memory of the first is used again, and nothing of it is left.
  auto third = std::vector<std::uint32_t>(500, 77u);
  stager.push_gradient(step_id{10}, bytes_of(third));
  CHECK(std::ranges::equal(next<gradient_frame>(joiner).bytes, bytes_of(third)));
  stager.push_end(step_id{10}, 17, 3);
  // Nothing comes after the end.
  stager.push_gradient(step_id{11}, bytes_of(third));
  auto end = next<end_frame>(joiner);
  CHECK(end.boundary == step_id{10});
  CHECK(end.commands_agreed == 17);
  CHECK(end.evaluations == 3);
  wait_until_idle(stager);
  CHECK(stager.last_error() == error{});
  CHECK(error_of(joiner.next()).code == errc::aborted);
}

TEST_CASE_TEMPLATE("a joiner learns what was committed while it computed a step", Group, TROUPE_STAGING_GROUPS) {
  auto group = Group{1, 1};
  auto member = replica{{}};
  auto stager = state_stager{};
  stager.begin(group.settings_of(0), member.state, member.extras);
  auto gradient = std::vector<float>(10);
  stager.push_gradient(step_id{8}, bytes_of(gradient));
  stager.push_gradient(step_id{9}, bytes_of(gradient));
  auto joiner = group.joiner();
  REQUIRE(joiner.receive(member.state, member.extras));
  CHECK(next<gradient_frame>(joiner).latest == step_id{9});
  // The next is on its way already.
  stager.push_gradient(step_id{10}, bytes_of(gradient));
  stager.push_gradient(step_id{11}, bytes_of(gradient));
  auto frame = next<gradient_frame>(joiner);
  CHECK(frame.step == step_id{9});
  CHECK(frame.latest == step_id{11});
}

TEST_CASE("what is pushed without a group under way is dropped") {
  auto stager = state_stager{};
  stager.push_gradient(step_id{1}, bytes_of(std::vector<float>(10)));
  stager.push_evaluation({});
  stager.push_end(step_id{1}, 0, 0);
  stager.abort({errc::aborted, "nothing to abort"});
  CHECK(!stager.is_active());
  CHECK(stager.last_error() == error{});
}

TEST_CASE("staging is aborted while its group forms") {
  auto member = replica{{10}};
  auto mutex = std::mutex{};
  auto changed = std::condition_variable_any{};
  auto is_forming = std::promise<void>{};
  auto settings = staging_settings{};
  settings.form = [&](std::stop_token stop) -> expected<std::unique_ptr<communicator>> {
    is_forming.set_value();
    auto lock = std::unique_lock{mutex};
    changed.wait(lock, std::move(stop), [] { return false; });
    return fail(errc::aborted, "cancelled");
  };
  auto stager = state_stager{};
  stager.begin(settings, member.state, member.extras);
  is_forming.get_future().wait();
  CHECK(stager.is_active());
  stager.push_gradient(boundary, bytes_of(std::vector<float>(10)));
  stager.abort({errc::stale_generation, "the generation is over"});
  wait_until_idle(stager);
  // The first reason stays.
  CHECK(stager.last_error() == error{errc::stale_generation, "the generation is over"});
}

TEST_CASE_TEMPLATE("a group that was formed in spite of an abort is not used", Group, TROUPE_STAGING_GROUPS) {
  auto group = Group{1, 1};
  auto member = replica{{10}};
  auto go_on = std::promise<void>{};
  auto settings = group.settings_of(0);
  settings.form = [&](const std::stop_token&) {
    auto formed = group.form(0);
    go_on.get_future().wait();
    return formed;
  };
  auto stager = state_stager{};
  stager.begin(settings, member.state, member.extras);
  auto joiner = group.joiner();
  stager.abort({errc::aborted, "too late"});
  go_on.set_value();
  CHECK(!joiner.receive(member.state, member.extras));
  wait_until_idle(stager);
  CHECK(stager.last_error() == error{errc::aborted, "too late"});
}

TEST_CASE_TEMPLATE("staging is aborted while it sends to a joiner that takes nothing, and the joiner finds out", Group,
                   TROUPE_STAGING_GROUPS) {
  for (auto has_state : {false, true}) {
    CAPTURE(has_state);
    auto group = Group{2, 1};
    auto member = replica{odd_sizes};
    auto stagers = std::list<state_stager>(2);
    for (std::uint32_t rank = 0; auto& stager : stagers)
      stager.begin(group.settings_of(rank++), member.state, member.extras);
    auto joiner = group.joiner();
    if (has_state) {
      REQUIRE(joiner.receive(member.state, member.extras));
      stagers.front().push_gradient(step_id{8}, bytes_of(std::vector<float>(std::size_t{3} << 20)));
      stagers.front().push_end(step_id{8}, 0, 0);
    }
    stagers.front().abort({errc::aborted, "regroup"});
    wait_until_idle(stagers.front());
    CHECK(stagers.front().last_error() == error{errc::aborted, "regroup"});
    if (has_state) {
      CHECK(error_of(joiner.next()).code == errc::aborted);
    } else {
      auto got = joiner.receive(member.state, member.extras);
      REQUIRE(!got);
      CHECK(got.error().code == errc::aborted);
    }
  }
}

TEST_CASE_TEMPLATE("a stager whose joiners are too slow for its memory gives up, and starts anew with the next", Group,
                   TROUPE_STAGING_GROUPS) {
  auto gradient = std::vector<std::uint8_t>(1000);
  auto member = replica{{10}};
  auto stager = state_stager{};
  auto group = Group{1, 1};
  auto settings = group.settings_of(0);
  settings.queue_limit_bytes = 3000;
  settings.queue_limit_gradients = 0;
  stager.begin(settings, member.state, member.extras);
  auto joiner = group.joiner();
  REQUIRE(joiner.receive(member.state, member.extras));
  // What was sent counts no more.
  for (std::uint64_t step = 8; step < 18; ++step) {
    stager.push_gradient(step_id{step}, bytes_of(gradient));
    CHECK(next<gradient_frame>(joiner).step == step_id{step});
  }
  CHECK(stager.last_error() == error{});
  for (std::uint64_t step = 18; step < 22; ++step)
    stager.push_gradient(step_id{step}, bytes_of(gradient));
  CHECK(stager.last_error().code == errc::aborted);
  CHECK(stager.last_error().message.find("3000 bytes") != std::string::npos);
  CHECK(error_of(joiner.next()).code == errc::aborted);
  wait_until_idle(stager);

  auto again = Group{1, 1};
  settings = again.settings_of(0);
  settings.queue_limit_bytes = 3000;
  stager.begin(settings, member.state, member.extras);
  CHECK(stager.last_error() == error{});
  auto second = again.joiner();
  REQUIRE(second.receive(member.state, member.extras));
  stager.push_end(boundary, 0, 0);
  // Training goes on, and the end is still to be heard.
  for (std::uint64_t step = 8; step < 12; ++step)
    stager.push_gradient(step_id{step}, bytes_of(gradient));
  CHECK(next<end_frame>(second).boundary == boundary);
  wait_until_idle(stager);
  CHECK(stager.last_error() == error{});
}

TEST_CASE_TEMPLATE("a joiner that dies ends its group only", Group, TROUPE_STAGING_GROUPS) {
  auto member = replica{odd_sizes};
  auto stagers = std::list<state_stager>(2);
  {
    auto group = Group{2, 2};
    for (std::uint32_t rank = 0; auto& stager : stagers)
      stager.begin(group.settings_of(rank++), member.state, member.extras);
    auto survivor = std::async(std::launch::async, [&] {
      auto mine = replica{odd_sizes};
      auto joiner = group.joiner(1);
      return joiner.receive(mine.state, mine.extras) ? error_of(joiner.next()).code : errc::aborted;
    });
    // Gone when all are connected, and before it has taken anything.
    CHECK(value_or_throw(group.form(2))->barrier());
    for (auto& stager : stagers)
      wait_until_idle(stager);
    // The second may have sent all it has before.
    CHECK(stagers.front().last_error().code == errc::aborted);
    CHECK(survivor.get() == errc::aborted);
  }
  check_staging<Group>(stagers, 1, odd_sizes, 5);
}

TEST_CASE_TEMPLATE("a source that dies ends the transfer", Group, TROUPE_STAGING_GROUPS) {
  auto group = Group{2, 1};
  auto member = replica{odd_sizes};
  auto first = state_stager{};
  first.begin(group.settings_of(0), member.state, member.extras);
  auto second = std::async(std::launch::async, [&] {
    auto formed = value_or_throw(group.form(1));
    return formed->barrier().has_value();
  });
  auto mine = replica{odd_sizes};
  auto joiner = group.joiner();
  auto got = joiner.receive(mine.state, mine.extras);
  CHECK(second.get());
  REQUIRE(!got);
  CHECK(got.error().code == errc::aborted);
}

TEST_CASE_TEMPLATE("joiners that come while others are served take their place", Group, TROUPE_STAGING_GROUPS) {
  auto member = replica{odd_sizes};
  auto stagers = std::list<state_stager>(1);
  auto group = Group{1, 1};
  stagers.front().begin(group.settings_of(0), member.state, member.extras);
  auto joiner = group.joiner();
  check_staging<Group>(stagers, 1, odd_sizes, 6);
  auto got = joiner.receive(member.state, member.extras);
  REQUIRE(!got);
  CHECK(got.error().code == errc::aborted);
}

TEST_CASE_TEMPLATE("a stager that goes away takes its group along", Group, TROUPE_STAGING_GROUPS) {
  auto group = Group{1, 1};
  auto member = replica{{10}};
  auto stager = std::make_unique<state_stager>();
  stager->begin(group.settings_of(0), member.state, member.extras);
  auto joiner = group.joiner();
  REQUIRE(joiner.receive(member.state, member.extras));
  auto waiting = std::async(std::launch::async, [&] { return error_of(joiner.next()).code; });
  stager.reset();
  CHECK(waiting.get() == errc::aborted);
}

TEST_CASE_TEMPLATE("a joiner that waits is told to stop from another thread", Group, TROUPE_STAGING_GROUPS) {
  auto group = Group{1, 1};
  auto member = replica{{10}};
  auto stager = state_stager{};
  stager.begin(group.settings_of(0), member.state, member.extras);
  auto joiner = group.joiner();
  REQUIRE(joiner.receive(member.state, member.extras));
  auto waiting = std::async(std::launch::async, [&] { return error_of(joiner.next()); });
  joiner.abort({errc::stale_generation, "released"});
  CHECK(waiting.get() == error{errc::stale_generation, "released"});
  // The stager hears of it when it has something to say.
  stager.push_gradient(step_id{8}, bytes_of(std::vector<float>(10)));
  wait_until_idle(stager);
  CHECK(stager.last_error().code == errc::aborted);
}

TEST_CASE("a group that cannot be formed is noted, and training goes on") {
  auto member = replica{{10}};
  auto stager = state_stager{};
  auto settings = staging_settings{};
  settings.form = [](const std::stop_token&) -> expected<std::unique_ptr<communicator>> {
    return fail(errc::unreachable, "no such host");
  };
  stager.begin(settings, member.state, member.extras);
  wait_until_idle(stager);
  CHECK(stager.last_error() == error{errc::unreachable, "no such host"});
  settings.form = [](const std::stop_token&) -> expected<std::unique_ptr<communicator>> {
    throw exception{errc::timed_out, "no answer"};
  };
  stager.begin(settings, member.state, member.extras);
  wait_until_idle(stager);
  CHECK(stager.last_error() == error{errc::timed_out, "no answer"});
  settings.form = [](const std::stop_token&) -> expected<std::unique_ptr<communicator>> {
    throw std::runtime_error{"out of luck"};
  };
  stager.begin(settings, member.state, member.extras);
  wait_until_idle(stager);
  CHECK(stager.last_error().message.find("out of luck") != std::string::npos);
  // A group of another size.
  settings.form = [](const std::stop_token&) -> expected<std::unique_ptr<communicator>> {
    return collectives::make_self_communicator(generation_id{1});
  };
  stager.begin(settings, member.state, member.extras);
  wait_until_idle(stager);
  CHECK(stager.last_error().code == errc::internal);
}

TEST_CASE_TEMPLATE("a joiner with tensors of other sizes is told so", Group, TROUPE_STAGING_GROUPS) {
  auto group = Group{1, 1};
  auto member = replica{{10, 20}};
  auto stager = state_stager{};
  stager.begin(group.settings_of(0), member.state, member.extras);
  auto other = replica{{10, 21}};
  auto joiner = group.joiner();
  auto got = joiner.receive(other.state, other.extras);
  REQUIRE(!got);
  CHECK(got.error().code == errc::mismatch);
  CHECK(got.error().message.find("31 bytes, the others of 30") != std::string::npos);
}

} // namespace troupe::runtime

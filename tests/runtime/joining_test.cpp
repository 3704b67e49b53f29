#include "worker/group/data_plane.hpp"
#include "worker/session.hpp"

#include <troupe/actors/decisions/regroup.hpp>
#include <troupe/collectives/summation_tree.hpp>
#include <troupe/collectives/tcp_communicator.hpp>

#include <doctest/doctest.h>
#include <fake_device.hpp>
#include <rank_group.hpp>
#include <scratch_directory.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

using namespace troupe;
using namespace std::chrono_literals;

/// Sessions that lose their group, and one that joins: the driver is fake.
namespace {

constexpr std::uint32_t shards = 8;

/// What no test here needs.
class link_without_files : public runtime::driver_client {
 public:
  expected<std::vector<std::vector<collectives::unique_fd>>>
  exchange_descriptors(const runtime::descriptor_offer&, std::span<const int>, const std::stop_token&) override {
    return fail(errc::internal, "this fake does not implement it");
  }
  expected<exchange_result> exchange_staging(const exchange_request&) override {
    return fail(errc::internal, "this fake does not implement it");
  }
  void tell(const caught_up&) override {}
  void end(const exchange_ended&) override {}
  expected<checkpoint_outcome> deliver(const checkpoint_part& part) override {
    return checkpoint_outcome{part.step, "", {}};
  }
  expected<void> push(const metrics_batch&) override { return {}; }
  void finish(const worker_finished&) override {}
};

group_place place_of(std::uint32_t rank, std::uint64_t generation) {
  group_place result;
  result.generation = {generation};
  result.rank = {rank};
  result.world_size = 2;
  result.local_rank = rank;
  result.local_world_size = 2;
  result.transport = transport_kind::tcp;
  result.data_address = "127.0.0.1";
  result.nodes = {{0, 2}};
  return result;
}

begin_training begin_at(const std::filesystem::path& directory, std::uint32_t rank) {
  begin_training result;
  result.settings.function = "train";
  result.settings.directory = directory.string();
  result.settings.shards = shards;
  result.settings.configuration = "{}";
  result.settings.options = "{}";
  result.worker = {rank};
  result.settings.collective_timeout_ms = 60'000;
  result.checkpoints.max_in_flight = 1;
  return result;
}

step_plan plan_of(std::uint64_t steps) {
  step_plan result;
  result.data = {64, "d"};
  result.batch_samples = 8;
  result.gradient_elements = 4;
  result.steps = steps;
  return result;
}

using collectives::testing::fake_device;
using collectives::testing::on_host;

expected<std::shared_ptr<collectives::device>> fake_gpu(std::uint32_t seed) {
  fake_device::options options;
  options.seed = seed;
  return std::make_shared<fake_device>(options);
}

/// Tracked weights in host memory or in that of a fake GPU, and work on them.
class placed_weights {
 public:
  placed_weights(train_context& ctx, std::size_t elements, bool on_gpu)
      : ctx_(ctx), on_gpu_(on_gpu), host_(on_gpu ? 0 : elements) {
    if (!on_gpu) {
      ctx.state().track("weights", host_);
      return;
    }
    gpu_ = value_or_throw(collectives::device_memory::make(ctx.gpu(), elements * sizeof(float)));
    std::ranges::fill(values(), 0.0f);
    ctx.track_on_gpu("weights", gpu_.bytes().as<float>());
  }

  void run(std::function<void()> work) {
    on_gpu_ ? value_or_throw(fake_device::run_on(ctx_.gpu_stream().handle(), std::move(work))) : work();
  }

  template <class Step>
  void add(Step& step) {
    auto gradient = on_host(step.all_reduce());
    run([weights = values(), gradient] {
      for (std::size_t i = 0; i < gradient.size(); ++i)
        weights[i] += gradient[i];
    });
  }

  /// Once all work is done.
  [[nodiscard]] std::vector<float> copy() {
    if (on_gpu_)
      value_or_throw(ctx_.gpu()->synchronize());
    auto all = values();
    return {all.begin(), all.end()};
  }

 private:
  std::span<float> values() { return on_gpu_ ? on_host(gpu_.bytes().as<float>()) : std::span{host_}; }

  train_context& ctx_;
  bool on_gpu_;
  std::vector<float> host_;
  collectives::device_memory gpu_;
};

/// The same body for a plan in host memory and for one on a GPU.
template <class Body>
void for_each_step(train_context& ctx, const step_plan& plan, bool on_gpu, Body body) {
  if (on_gpu)
    ctx.for_each_step(device_plan{plan}, [&](device_step& step) { body(step); });
  else
    ctx.for_each_step(plan, [&](step& step) { body(step); });
}

/// A driver of two workers that both live: every regroup is of the same two, as `decide_regroup` decides.
class two_survivors {
 public:
  class link : public link_without_files {
   public:
    link(two_survivors& driver, std::uint32_t rank) : driver_(driver), rank_(rank) {}
    expected<exchange_result> exchange(const exchange_request& message) override { return driver_.exchange(message); }
    expected<plan_accepted> agree(const run_plan& plan) override { return driver_.agree(plan); }
    expected<next_generation> regroup(const regroup_report& report) override { return driver_.regroup(rank_, report); }

   private:
    two_survivors& driver_;
    std::uint32_t rank_;
  };

  expected<exchange_result> exchange(const exchange_request& message) {
    auto lock = std::unique_lock{mutex_};
    auto generation = message.generation.value;
    auto& blobs = blobs_[{generation, message.sequence}];
    blobs[message.rank.value] = message.blob;
    changed_.notify_all();
    changed_.wait(lock, [&] { return generation_ > generation || blobs.size() == 2; });
    if (generation_ > generation)
      return fail(errc::stale_generation, "this generation is over");
    return exchange_result{message.generation, {blobs[0], blobs[1]}};
  }

  expected<plan_accepted> agree(const run_plan& plan) {
    auto lock = std::unique_lock{mutex_};
    ++plans_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return plans_ >= 2; });
    return plan_accepted{plan.generation};
  }

  expected<next_generation> regroup(std::uint32_t rank, const regroup_report& report) {
    auto lock = std::unique_lock{mutex_};
    auto over = report.generation.value;
    reports_[rank] = report;
    if (reports_.size() == 2) {
      auto decision = actors::decide_regroup(std::vector{reports_[0], reports_[1]});
      reports_.clear();
      ++generation_;
      for (std::uint32_t i = 0; i < 2; ++i) {
        member_place next;
        next.place = place_of(i, generation_);
        next.commit_point = decision->commit_point;
        next.commands_agreed = decision->commands_agreed;
        next.evaluations = decision->evaluations;
        // As long as no step counts.
        next.comparison = decision->commit_point == step_id{} ? state_comparison::whole : state_comparison::slice;
        answers_[i] = next_generation{next};
      }
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return generation_ > over || somebody_has_finished_; });
    if (generation_ == over)
      return fail(errc::aborted, "the other has done its last step");
    return answers_[rank];
  }

  void finished() {
    auto lock = std::lock_guard{mutex_};
    somebody_has_finished_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t generation_ = 3;
  int plans_ = 0;
  bool somebody_has_finished_ = false;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::map<std::uint32_t, std::string>> blobs_;
  std::map<std::uint32_t, regroup_report> reports_;
  std::map<std::uint32_t, next_generation> answers_;
};

/// Two sessions whose group is lost once, after `pause`, when both have begun; what they end with, and their weights.
struct ended {
  worker_finished result;
  std::vector<float> weights;
};

std::vector<ended> lose_once(const std::filesystem::path& directory, std::chrono::microseconds pause, bool on_gpu,
                             std::size_t elements, std::uint64_t steps) {
  two_survivors driver;
  std::vector<std::unique_ptr<two_survivors::link>> links;
  std::vector<std::unique_ptr<train_context::impl>> sessions;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    auto begin = begin_at(directory, rank);
    begin.place = place_of(rank, 3);
    begin.device.gpus = on_gpu ? 0.5 : 0;
    links.push_back(std::make_unique<two_survivors::link>(driver, rank));
    runtime::device_factories factories;
    factories.open_device = [rank] { return fake_gpu(rank + 1); };
    sessions.push_back(std::make_unique<train_context::impl>(begin, *links.back(), std::move(factories)));
  }
  std::atomic<int> bodies{0};
  std::vector<ended> results(2);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      results[rank].result = sessions[rank]->run([&](train_context& ctx) {
        placed_weights weights{ctx, elements, on_gpu};
        for_each_step(ctx, plan_of(steps), on_gpu, [&](auto& step) {
          for (auto& shard : step.shards())
            weights.run([gradient = on_host(shard.gradient())] { gradient[0] += 1; });
          ++bodies;
          weights.add(step);
        });
        results[rank].weights = weights.copy();
      });
      driver.finished();
      // The other is not to wait for it.
      if (results[rank].result.reason.code != errc::none)
        for (auto& each : sessions)
          each->abort({{}, {1'000}, {errc::aborted, "the run is ending"}});
    });
  while (bodies < 2)
    std::this_thread::yield();
  const auto instant = std::chrono::steady_clock::now() + pause;
  while (std::chrono::steady_clock::now() < instant) {
  }
  for (auto& each : sessions)
    each->abort({{}, {3}, {errc::aborted, "a loss"}});
  for (auto& each : threads)
    each.join();
  return results;
}

} // namespace

TEST_CASE("a loss at any instant of the first steps leaves replicas that are compared alike") {
  testing::scratch_directory scratch;
  auto random = std::mt19937{1};
  for (auto attempt = 0; attempt < 25; ++attempt) {
    CAPTURE(attempt);
    // So large that the digests take a while.
    for (const auto& each :
         lose_once(scratch.path(), std::chrono::microseconds(random() % 1500), false, std::size_t{1} << 18, 2)) {
      INFO(each.result.reason.message);
      CHECK(each.result.reason.code != errc::mismatch);
    }
  }
}

TEST_CASE("a loss at any instant costs a run on GPUs no step, and no step counts twice") {
  testing::scratch_directory scratch;
  auto random = std::mt19937{2};
  constexpr std::uint64_t steps = 6;
  auto completed = 0;
  for (auto attempt = 0; attempt < 25; ++attempt) {
    CAPTURE(attempt);
    for (const auto& each : lose_once(scratch.path(), std::chrono::microseconds(random() % 6000), true, 64, steps)) {
      INFO(each.result.reason.message);
      // Who comes late to the other's end is cut off, and nothing worse.
      if (each.result.reason.code != errc::none) {
        CHECK(each.result.reason.code == errc::aborted);
        continue;
      }
      ++completed;
      REQUIRE(each.weights.size() == 64);
      CHECK(each.weights[0] == static_cast<float>(steps));
      CHECK(each.weights[1] == 0.0f);
    }
  }
  CHECK(completed >= 25);
}

namespace {

/// A driver of one joiner: each report is answered by the next of what it was told to say.
class joiners_link : public link_without_files {
 public:
  joiners_link(std::vector<next_generation> answers, collectives::testing::rendezvous<std::string>& addresses)
      : answers_(std::move(answers)), addresses_(addresses) {}

  expected<exchange_result> exchange(const exchange_request& message) override {
    if (message.group_size == 0)
      return fail(errc::aborted, "a peer is gone while the group forms");
    return exchange_result{message.generation, addresses_.exchange(message.rank.value, std::string{message.blob})};
  }
  expected<plan_accepted> agree(const run_plan& plan) override { return plan_accepted{plan.generation}; }
  expected<next_generation> regroup(const regroup_report& report) override {
    reports.push_back(report);
    if (reports.size() > answers_.size())
      return fail(errc::aborted, "the run is ending");
    return answers_[reports.size() - 1];
  }
  void tell(const caught_up& message) override { levels.push_back(message); }

  std::vector<regroup_report> reports;
  std::vector<caught_up> levels;

 private:
  std::vector<next_generation> answers_;
  collectives::testing::rendezvous<std::string>& addresses_;
};

next_generation staged_in(std::uint64_t generation) {
  return {staging_place{1, {generation}, {1}, 1, 1, transport_kind::tcp, {}, "127.0.0.1"}};
}

/// A place in a generation that is lost while it forms.
next_generation failing_place() {
  member_place result;
  result.place = place_of(1, 5);
  result.joiners = {rank_id{1}};
  result.commit_point = {6};
  result.comparison = state_comparison::whole;
  return {result};
}

/// What one member gives, from the state after step 7.
struct member {
  std::vector<float> weights = std::vector<float>(4, 1.0f);
  tracked_state state;
  runtime::state_stager stager;

  member(collectives::testing::rendezvous<std::string>& addresses, std::uint64_t generation) {
    state.track("weights", weights);
    runtime::staging_settings settings;
    settings.rank = {0};
    settings.sources = settings.joiners = 1;
    settings.step = {7};
    settings.form = [&addresses, generation](const std::stop_token&) {
      auto place = runtime::data_plane{}.options("staging/1");
      place.rank = {0};
      place.world_size = 2;
      place.generation = {generation};
      place.deadline = 60s;
      return collectives::make_tcp_communicator(place, [&](std::string mine) -> expected<std::vector<std::string>> {
        return addresses.exchange(0, std::move(mine));
      });
    };
    stager.begin(std::move(settings), state, {});
  }

  /// The gradient is the step's number, the metric a tenth of it.
  void reduce(std::uint64_t step) {
    auto layout = collectives::bucket_layout{{{dtype::f32, 4}, {dtype::f64, plan_of(1).metrics.size()}}};
    std::vector<std::byte> bucket(layout.size_bytes());
    for (std::size_t i = 0; i < 4; ++i)
      reinterpret_cast<float*>(bucket.data())[i] = static_cast<float>(step);
    stager.push_gradient({step}, bucket);
  }
};

struct joiner {
  testing::scratch_directory scratch;
  std::vector<float> weights = std::vector<float>(4);
  std::vector<std::uint64_t> applied;
  std::vector<double> evaluated;

  worker_finished follow(joiners_link& link, const std::function<void(basic_step&)>& before = {}, bool on_gpu = false) {
    auto begin = begin_at(scratch.path(), 1);
    begin.device.gpus = on_gpu ? 1 : 0;
    begin.place.rank = {1};
    begin.place.world_size = 2;
    begin.place.local_world_size = 1;
    runtime::device_factories factories;
    factories.open_device = [] { return fake_gpu(1); };
    train_context::impl session{begin, link, std::move(factories)};
    return session.run([&](train_context& ctx) {
      placed_weights placed{ctx, weights.size(), on_gpu};
      for_each_step(ctx, plan_of(100), on_gpu, [&](auto& step) {
        if (before)
          before(step);
        for (auto& shard : step.shards())
          placed.run([gradient = on_host(shard.gradient())] { gradient[0] += 1; });
        placed.add(step);
        applied.push_back(step.number());
        weights = placed.copy();
        if (step.number() == 9)
          evaluated = ctx.evaluate(
              8, 1, [](std::span<const std::uint64_t>, std::span<double>) { FAIL("a joiner computes no evaluation"); });
      });
    });
  }
};

} // namespace

TEST_CASE("a joiner repeats what the others have reduced, and comes to the boundary that they name") {
  for (auto [fails_first, on_gpu] : {std::pair{false, false}, {true, false}, {false, true}}) {
    CAPTURE(fails_first);
    CAPTURE(on_gpu);
    collectives::testing::rendezvous<std::string> addresses{2};
    auto answers = std::vector{staged_in(6)};
    if (fails_first)
      answers.insert(answers.begin(), failing_place());
    joiners_link link{answers, addresses};
    member other{addresses, 6};
    other.reduce(8);
    other.reduce(9);
    other.stager.push_evaluation(std::vector{0.25});
    other.reduce(10);
    other.stager.push_end({10}, 17, 3);
    joiner joins;
    auto end = joins.follow(link, {}, on_gpu);
    CHECK(end.reason.code == errc::aborted);
    CHECK(joins.weights == std::vector<float>(4, 1 + 8 + 9 + 10));
    CHECK(joins.applied == std::vector<std::uint64_t>{8, 9, 10});
    CHECK(joins.evaluated == std::vector{0.25});
    REQUIRE(link.levels.size() == 1);
    CHECK(link.levels.front().staging == 1);
    const auto& report = link.reports.back();
    CHECK(report.position == decltype(report.position){worker_position::caught_up{{{10}, 17, 3}, 1}});
    CHECK(report.generation == generation_id{6});
  }
}

TEST_CASE("a joiner whose sources are gone asks again, without a state") {
  collectives::testing::rendezvous<std::string> addresses{2};
  joiners_link link{{staged_in(6)}, addresses};
  auto other = std::make_unique<member>(addresses, 6);
  other->reduce(8);
  joiner joins;
  auto end = joins.follow(link, [&](basic_step& step) {
    if (step.number() == 8)
      other.reset();
  });
  CHECK(end.reason.code == errc::aborted);
  REQUIRE(link.reports.size() == 2);
  CHECK(link.reports.back().position == decltype(regroup_report::position){worker_position::without_state{1}});
}

TEST_CASE("what the user's code throws in a repeated step is the user's") {
  collectives::testing::rendezvous<std::string> addresses{2};
  joiners_link link{{staged_in(6)}, addresses};
  member other{addresses, 6};
  other.reduce(8);
  joiner joins;
  auto end = joins.follow(link, [](basic_step&) { throw exception{errc::io_error, "the data set cannot be read"}; });
  CHECK(end.reason.code == errc::io_error);
  CHECK(end.reason.message.find("the data set cannot be read") != std::string::npos);
  CHECK(link.reports.size() == 1);
}

TEST_CASE("a joiner on the members' node exchanges memory with them, in the name of the staging group") {
  class link_that_has_no_memory : public joiners_link {
   public:
    using joiners_link::joiners_link;
    expected<std::vector<std::vector<collectives::unique_fd>>>
    exchange_descriptors(const runtime::descriptor_offer& place, std::span<const int> mine,
                         const std::stop_token&) override {
      CHECK(!mine.empty());
      places.push_back(place);
      return fail(errc::io_error, "too many open files");
    }
    std::vector<runtime::descriptor_offer> places;
  };
  collectives::testing::rendezvous<std::string> addresses{3};
  link_that_has_no_memory link{
      {next_generation{staging_place{4, {6}, {2}, 2, 1, transport_kind::shm, {{1, 3}}, "127.0.0.1"}}}, addresses};
  // The members are there; only then is memory exchanged.
  std::vector<std::jthread> members;
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    members.emplace_back([&addresses, rank] { addresses.exchange(rank, {}); });
  joiner joins;
  CHECK(joins.follow(link).reason.code == errc::aborted);
  REQUIRE(link.places.size() == 1);
  CHECK(link.places[0].group == runtime::descriptor_group{{6}, 4});
  CHECK(link.places[0].local_rank == 2);
  CHECK(link.places[0].local_world_size == 3);
  // It asks again: the loss of a staging group ends no run.
  REQUIRE(link.reports.size() == 2);
  CHECK(link.reports.back().position == decltype(regroup_report::position){worker_position::without_state{4}});
}

#include "nccl/group.hpp"
#include "worker/group/nccl_interface.hpp"
#include "worker/session.hpp"

#include <troupe/actors/decisions/checkpoint_attempts.hpp>
#include <troupe/actors/decisions/regroup.hpp>
#include <troupe/collectives/summation_tree.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>

#include <doctest/doctest.h>
#include <fake_device.hpp>
#include <fake_nccl.hpp>
#include <scratch_directory.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;
using namespace std::chrono_literals;
using collectives::testing::fake_device;
using collectives::testing::fake_nccl;
using collectives::testing::on_host;

/// Sessions whose workers have a GPU each, so that their gradients go over NCCL: driver, GPUs and NCCL are fake.
namespace {

constexpr std::uint32_t shards = 8;
/// Two parts, which are reduced while the body goes on.
constexpr std::size_t elements = 4096;
constexpr std::uint64_t first_generation = 3;
constexpr std::uint64_t first_gpu_exchange = std::uint64_t{1} << 63;

/// The driver of workers that are threads. Who is lost has no place any more; the others form the next generation when
/// all have reported.
class fake_run {
 public:
  class link : public runtime::driver_client {
   public:
    link(fake_run& run, worker_id worker) : run_(run), worker_(worker) {}

    expected<exchange_result> exchange(const exchange_request& message) override { return run_.exchange(message); }
    expected<exchange_result> exchange_staging(const exchange_request&) override {
      return fail(errc::internal, "this fake does not implement it");
    }
    expected<std::vector<std::vector<collectives::unique_fd>>>
    exchange_descriptors(const runtime::descriptor_offer&, std::span<const int>, const std::stop_token&) override {
      return fail(errc::internal, "this fake does not implement it");
    }
    expected<plan_accepted> agree(const run_plan& plan) override { return run_.agree(plan); }
    expected<next_generation> regroup(const regroup_report& report) override { return run_.regroup(worker_, report); }
    expected<exit_granted> request_exit(const exit_request& message) override { return run_.request_exit(message); }
    void withdraw(const exit_withdrawn& message) override { run_.withdraw(message); }
    void tell(const caught_up&) override {}
    void end(const exchange_ended&) override {}
    expected<checkpoint_outcome> deliver(const checkpoint_part& part) override {
      return checkpoint_outcome{part.step, "", {}};
    }
    expected<checkpoint_outcome> deliver_last(const checkpoint_part& part) override { return run_.commit(part); }
    expected<void> push(const metrics_batch&) override { return {}; }
    void finish(const worker_finished&) override {}

   private:
    fake_run& run_;
    worker_id worker_;
  };

  explicit fake_run(std::uint32_t workers, int nccl_version = 22809)
      : nccl_(fake_nccl::table(nccl_version)), results(workers), weights(workers) {
    for (std::uint32_t i = 0; i < workers; ++i)
      members_.push_back(worker_id{i});
    for (std::uint32_t i = 0; i < workers; ++i) {
      links_.push_back(std::make_unique<link>(*this, worker_id{i}));
      begin_training begin;
      begin.settings.function = "train";
      begin.settings.directory = scratch_.path().string();
      begin.settings.shards = shards;
      begin.settings.configuration = begin.settings.options = "{}";
      begin.worker = worker_id{i};
      begin.settings.collective_timeout_ms = 60'000;
      begin.checkpoints.max_in_flight = 1;
      begin.device.gpus = 1;
      begin.place = place_of(worker_id{i});
      runtime::device_factories factories;
      factories.open_device = [i]() -> expected<std::shared_ptr<collectives::device>> {
        return std::make_shared<fake_device>(fake_device::options{.seed = i + 1, .uuid = "GPU-" + std::to_string(i)});
      };
      factories.find_nccl = []() -> expected<std::string> { return "NCCL 2.28.9"; };
      factories.make_nccl_group = [this, i](std::shared_ptr<collectives::device> where,
                                            collectives::nccl_options options,
                                            const collectives::address_exchange& exchange) {
        options.shrink_deadline = 500ms;
        if (adjust)
          adjust(i, options);
        if (refuse)
          if (auto refused = refuse(i, options.generation))
            return expected<std::unique_ptr<collectives::device_group>>{fail(std::move(*refused))};
        return collectives::make_nccl_group(nccl_, std::move(where), std::move(options), exchange);
      };
      sessions.push_back(std::make_unique<train_context::impl>(begin, *links_.back(), std::move(factories)));
    }
  }

  /// Trains `steps` steps on all workers, each of which adds 1 to the first weight.
  void train(std::uint64_t steps) {
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < sessions.size(); ++i)
      threads.emplace_back([&, i] {
        results[i] = sessions[i]->run([&, i](train_context& ctx) { run_steps(ctx, i, steps); });
        finished(worker_id{i});
      });
    for (auto& each : threads)
      each.join();
    // As processes would: all at the same time.
    threads.clear();
    for (auto& each : sessions)
      threads.emplace_back([&each] { each.reset(); });
    for (auto& each : threads)
      each.join();
  }

  /// A worker's process ends in its step 5, before its part of the reduction is done.
  void lose_in_step_5(worker_id worker, const std::function<void()>& before = {}) {
    while_reducing = [this, worker, before](train_context&, device_step& step, std::uint32_t mine) {
      if (mine != worker.value || step.number() != 5)
        return;
      if (before)
        before();
      lose(worker);
    };
  }

  void lose(worker_id worker) {
    {
      auto lock = std::lock_guard{mutex_};
      std::erase(members_, worker);
      lost_.insert(worker);
    }
    const error reason{errc::aborted, "worker " + std::to_string(worker.value) + " is lost"};
    sessions[worker.value]->abort({{}, {1'000}, reason});
    abort_all(reason);
  }

  /// This generation is over, for all who do not know yet.
  void abort_all(const error& reason) {
    auto over = generation_id{};
    {
      auto lock = std::lock_guard{mutex_};
      over = {generation_};
      is_over_ = true;
      changed_.notify_all();
    }
    for (auto& each : sessions)
      each->abort({{}, over, reason});
  }

  /// The exchanges of GPUs in a generation, counted from the first.
  std::set<std::uint64_t> gpu_exchanges(std::uint64_t generation) {
    auto lock = std::lock_guard{mutex_};
    std::set<std::uint64_t> result;
    for (const auto& [key, blobs] : blobs_)
      if (key.first == generation && key.second >= first_gpu_exchange)
        result.insert(key.second - first_gpu_exchange);
    return result;
  }

  void check_results(std::uint64_t steps, const std::vector<std::uint32_t>& workers) {
    for (auto i : workers) {
      INFO("worker ", i, ": ", results[i].reason.message);
      CHECK(results[i].reason.code == errc::none);
      REQUIRE(weights[i].size() == elements);
      CHECK(weights[i][0] == static_cast<float>(steps));
      CHECK(weights[i][1] == 0.0f);
    }
  }

 private:
  std::shared_ptr<const collectives::nccl::library> nccl_;
  testing::scratch_directory scratch_;
  std::vector<std::unique_ptr<link>> links_;

 public:
  std::vector<std::unique_ptr<train_context::impl>> sessions;
  std::vector<worker_finished> results;
  std::vector<std::vector<float>> weights;
  std::function<void(std::uint32_t worker, collectives::nccl_options&)> adjust;
  /// Why a worker has no group in this generation, if it is not to have one.
  std::function<std::optional<error>(std::uint32_t worker, generation_id)> refuse;
  /// Done in a body whose reduction is under way.
  std::function<void(train_context&, device_step&, std::uint32_t worker)> while_reducing;
  std::vector<exit_request> asked;
  std::vector<exit_withdrawn> withdrawn;
  /// The answer to a request for exit; without one, all hanging calls have returned by then.
  std::function<expected<exit_granted>(const exit_request&)> answer_exit;
  /// Where the last copies lie.
  std::vector<std::string> committed;

  const std::filesystem::path& directory() const { return scratch_.path(); }

 private:
  void run_steps(train_context& ctx, std::uint32_t worker, std::uint64_t steps) {
    auto memory = value_or_throw(collectives::device_memory::make(ctx.gpu(), elements * sizeof(float)));
    auto values = on_host(memory.bytes().as<float>());
    std::ranges::fill(values, 0.0f);
    ctx.track_on_gpu("weights", memory.bytes().as<float>());
    const auto on_stream = [&](std::function<void()> work) {
      value_or_throw(fake_device::run_on(ctx.gpu_stream().handle(), std::move(work)));
    };
    step_plan plan;
    plan.data = {64, "d"};
    plan.batch_samples = 8;
    plan.gradient_elements = elements;
    plan.bucket_bytes = elements * sizeof(float) / 2;
    plan.steps = steps;
    ctx.for_each_step(device_plan{plan}, [&](device_step& step) {
      for (auto& shard : step.shards()) {
        on_stream([gradient = on_host(shard.gradient())] { gradient[0] += 1; });
        shard.mark_ready(0, elements);
      }
      if (while_reducing)
        while_reducing(ctx, step, worker);
      auto sum = on_host(step.all_reduce());
      on_stream([values, sum] {
        for (std::size_t i = 0; i < sum.size(); ++i)
          values[i] += sum[i];
      });
    });
    value_or_throw(ctx.gpu()->synchronize());
    weights[worker] = {values.begin(), values.end()};
  }

  group_place place_of(worker_id worker) const {
    group_place result;
    const auto size = static_cast<std::uint32_t>(members_.size());
    const auto rank = static_cast<std::uint32_t>(std::ranges::find(members_, worker) - members_.begin());
    result.generation = {generation_};
    result.rank = {rank};
    result.world_size = size;
    result.local_rank = rank;
    result.local_world_size = size;
    result.transport = size == 1 ? transport_kind::self : transport_kind::tcp;
    result.data_address = "127.0.0.1";
    result.nodes = {{0, size}};
    return result;
  }

  expected<exchange_result> exchange(const exchange_request& message) {
    auto lock = std::unique_lock{mutex_};
    const auto generation = message.generation.value;
    const auto is_over = [&] { return generation_ > generation || (generation_ == generation && is_over_); };
    auto& blobs = blobs_[{generation, message.sequence}];
    blobs[message.rank.value] = message.blob;
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_over() || blobs.size() == members_.size(); });
    if (is_over())
      return fail(errc::stale_generation, "this generation is over");
    exchange_result result{message.generation, {}};
    for (const auto& [rank, blob] : blobs)
      result.blobs.push_back(blob);
    return result;
  }

  expected<plan_accepted> agree(const run_plan& plan) {
    auto lock = std::unique_lock{mutex_};
    planned_.insert(plan.worker);
    changed_.notify_all();
    changed_.wait(lock, [this] { return planned_.size() == sessions.size(); });
    return plan_accepted{plan.generation};
  }

  expected<next_generation> regroup(worker_id worker, const regroup_report& report) {
    {
      // Whoever comes first tells of it, as the driver tells the others then.
      auto lock = std::unique_lock{mutex_};
      const auto is_first = report.generation.value == generation_ && !is_over_;
      lock.unlock();
      if (is_first)
        abort_all({errc::aborted, "another worker has lost its group: " + report.reason.message});
    }
    auto lock = std::unique_lock{mutex_};
    if (lost_.contains(worker))
      return fail(errc::aborted, "this worker is lost");
    const auto over = report.generation.value;
    reports_[worker] = report;
    if (reports_.size() == members_.size()) {
      std::vector<regroup_report> all;
      for (const auto& [who, each] : reports_)
        all.push_back(each);
      const auto decision = value_or_throw(actors::decide_regroup(all));
      reports_.clear();
      ++generation_;
      is_over_ = false;
      for (auto each : members_) {
        member_place next;
        next.place = place_of(each);
        next.commit_point = decision.commit_point;
        next.commands_agreed = decision.commands_agreed;
        next.evaluations = decision.evaluations;
        next.comparison = decision.commit_point == step_id{} ? state_comparison::whole : state_comparison::slice;
        answers_[each] = next_generation{next};
      }
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return generation_ > over || somebody_has_finished_; });
    if (generation_ == over)
      return fail(errc::aborted, "another has done its last step");
    return answers_[worker];
  }

  expected<exit_granted> request_exit(const exit_request& message) {
    {
      auto lock = std::lock_guard{mutex_};
      asked.push_back(message);
    }
    if (answer_exit)
      return answer_exit(message);
    // What hung comes back now.
    fake_nccl::hangs = false;
    auto lock = std::unique_lock{mutex_};
    changed_.wait(
        lock, [&] { return std::ranges::find(withdrawn, message.worker, &exit_withdrawn::worker) != withdrawn.end(); });
    return fail(errc::aborted, "the question was withdrawn");
  }

  /// As the store does.
  expected<checkpoint_outcome> commit(const checkpoint_part& part) {
    auto lock = std::lock_guard{mutex_};
    actors::checkpoint_attempts attempts;
    auto whole = attempts.add(part, {});
    REQUIRE(whole);
    auto content = value_or_throw(std::move(*whole));
    const auto checkpoints = scratch_.path() / "checkpoints";
    auto path =
        serialization::commit_checkpoint(checkpoints, checkpoints / content.temporary_directory, content.content);
    if (!path)
      return checkpoint_outcome{part.step, {}, path.error()};
    committed.push_back(path->string());
    return checkpoint_outcome{part.step, path->string(), {}};
  }

  void withdraw(const exit_withdrawn& message) {
    auto lock = std::lock_guard{mutex_};
    withdrawn.push_back(message);
    changed_.notify_all();
  }

  void finished(worker_id worker) {
    auto is_failed = results[worker.value].reason.code != errc::none;
    {
      auto lock = std::lock_guard{mutex_};
      is_failed = is_failed && !lost_.contains(worker);
      somebody_has_finished_ = somebody_has_finished_ || !lost_.contains(worker);
      changed_.notify_all();
    }
    if (is_failed)
      abort_all({errc::aborted, "the run is ending: " + results[worker.value].reason.message});
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t generation_ = first_generation;
  /// It is given up, and the next is not formed yet.
  bool is_over_ = false;
  std::vector<worker_id> members_;
  std::set<worker_id> lost_;
  std::set<worker_id> planned_;
  bool somebody_has_finished_ = false;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::map<std::uint32_t, std::string>> blobs_;
  std::map<worker_id, regroup_report> reports_;
  std::map<worker_id, next_generation> answers_;
};

/// Loses worker 0, and has NCCL hang on both: worker 1 is the last that has the state. Returns why its process ends.
std::string end_of_last(fake_run& run) {
  std::string result;
  run.answer_exit = [](const exit_request& message) { return exit_granted{message.worker == worker_id{1}}; };
  run.adjust = [&](std::uint32_t worker, collectives::nccl_options& options) {
    options.on_hang.abort_deadline = 20ms;
    // Where the last process would end, what hangs comes back. A process that ends takes along what still uses its
    // memory; here the session's memory is freed, so that nothing may use it any more.
    options.on_hang.end_process = [&, worker](const error& why) {
      if (worker == 1) {
        result = why.message;
        fake_nccl::hangs = false;
      }
      while (fake_nccl::hangs || fake_nccl::living > 0)
        std::this_thread::sleep_for(1ms);
    };
  };
  run.lose_in_step_5(worker_id{0}, [] { fake_nccl::hangs = true; });
  run.train(12);
  fake_nccl::hangs = false;
  return result;
}

} // namespace

TEST_CASE("workers with a GPU each reduce over NCCL, in groups whose exchanges are numbered apart from all others") {
  const auto formed = fake_nccl::formed.load();
  fake_run run{2};
  run.train(5);
  run.check_results(5, {0, 1});
  CHECK(fake_nccl::formed - formed == 2);
  // What they have, what NCCL is told of each, and its id.
  CHECK(run.gpu_exchanges(first_generation) == std::set<std::uint64_t>{0, 1, 2});
  CHECK(fake_nccl::living == 0);
  CHECK(fake_nccl::violations == 0);
}

TEST_CASE("after a loss the group that is left is shrunk, or a new one formed, and no step is lost or counts twice") {
  for (const auto& [version, shrinks] : {std::pair{22809, true}, {22803, false}}) {
    INFO("version ", version);
    const auto formed = fake_nccl::formed.load();
    const auto shrunk = fake_nccl::shrunk.load();
    fake_run run{3, version};
    run.lose_in_step_5(worker_id{1});
    run.train(12);
    run.check_results(12, {0, 2});
    CHECK(run.results[1].reason.code != errc::none);
    CHECK(fake_nccl::formed - formed == (shrinks ? 3 : 5));
    CHECK(fake_nccl::shrunk - shrunk == (shrinks ? 2 : 0));
    // Anew in each generation: who is new in it has made none before.
    CHECK(run.gpu_exchanges(first_generation + 1) == std::set<std::uint64_t>{0, 1, 2});
    CHECK(fake_nccl::living == 0);
  }
  CHECK(fake_nccl::violations == 0);
}

TEST_CASE("the last of all goes on alone, on kernels alone") {
  fake_run run{2};
  run.lose_in_step_5(worker_id{0});
  run.train(12);
  run.check_results(12, {1});
  CHECK(run.gpu_exchanges(first_generation + 1).empty());
  CHECK(fake_nccl::living == 0);
  CHECK(fake_nccl::violations == 0);
}

TEST_CASE("a group that is given up while it is formed is formed again") {
  fake_run run{2};
  std::atomic<bool> is_refused = false;
  // One finds its peer unreachable; the other waits for it, until it is told.
  run.refuse = [&](std::uint32_t worker, generation_id generation) -> std::optional<error> {
    if (worker != 1 || generation.value != first_generation)
      return std::nullopt;
    is_refused = true;
    return error{errc::unreachable, "ncclCommInitRankConfig: unhandled system error"};
  };
  run.train(5);
  CHECK(is_refused);
  run.check_results(5, {0, 1});
  CHECK(run.gpu_exchanges(first_generation + 1) == std::set<std::uint64_t>{0, 1, 2});
  CHECK(fake_nccl::living == 0);
}

TEST_CASE("a peer that is never reached ends the run, with what NCCL says") {
  fake_run run{2};
  std::atomic<int> tries = 0;
  run.refuse = [&](std::uint32_t worker, generation_id) -> std::optional<error> {
    tries += worker == 1 ? 1 : 0;
    return worker == 1 ? std::optional{error{errc::unreachable, "ncclCommInitRankConfig: unhandled system error"}}
                       : std::nullopt;
  };
  run.train(5);
  CHECK(run.results[1].reason.code == errc::unreachable);
  CHECK(run.results[1].reason.message.find("ncclCommInitRankConfig") != std::string::npos);
  CHECK(tries == 5);
}

TEST_CASE("a worker whose NCCL hangs requests its exit, and goes on if it comes back meanwhile") {
  fake_run run{3};
  run.adjust = [](std::uint32_t, collectives::nccl_options& options) { options.on_hang.abort_deadline = 20ms; };
  run.lose_in_step_5(worker_id{2}, [] { fake_nccl::hangs = true; });
  run.train(12);
  fake_nccl::hangs = false;
  run.check_results(12, {0, 1});
  REQUIRE_FALSE(run.asked.empty());
  for (const auto& each : run.asked)
    CHECK(each.generation.value == first_generation);
  CHECK(run.withdrawn.size() == run.asked.size());
  CHECK(fake_nccl::violations == 0);
}

TEST_CASE("the last that has the state, and has to end, leaves a checkpoint of its last step") {
  fake_run run{2};
  std::filesystem::create_directory(run.directory() / "checkpoints");
  const auto end = end_of_last(run);
  INFO(end);
  CHECK(end.find("the state is copied out") != std::string::npos);
  REQUIRE(run.committed.size() == 1);
  const auto saved = value_or_throw(serialization::checkpoint::open(run.committed[0]));
  // The other may have left the barrier of its last step first.
  const auto step = saved.content().step.value;
  CHECK((step == 3 || step == 4));
  CHECK(saved.content().world_size == 1);
  std::vector<float> values(elements);
  value_or_throw(saved.read_tensor("weights", std::as_writable_bytes(std::span{values})));
  CHECK(values[0] == static_cast<float>(step));
  CHECK(values[1] == 0.0f);
}

TEST_CASE("a last copy that cannot be saved is told, with the reason") {
  fake_run run{2};
  std::ofstream{run.directory() / "checkpoints"} << "no directory";
  const auto end = end_of_last(run);
  INFO(end);
  CHECK(end.find("the state cannot be copied out (") != std::string::npos);
  CHECK(end.find("checkpoints") != std::string::npos);
  CHECK(run.committed.empty());
}

TEST_CASE("a training function that leaves a step while its GPUs reduce ends with its own error") {
  fake_run run{2};
  run.while_reducing = [](train_context&, device_step& step, std::uint32_t worker) {
    if (worker == 0 && step.number() == 3)
      throw std::runtime_error{"enough"};
  };
  run.train(5);
  CHECK(run.results[0].reason.code == errc::user_error);
  CHECK(run.results[0].reason.message.find("enough") != std::string::npos);
  CHECK(run.results[1].reason.code == errc::aborted);
  CHECK(fake_nccl::living == 0);
}

TEST_CASE("a worker that loses its place while its GPUs reduce ends in words") {
  fake_run run{2};
  run.while_reducing = [&](train_context& ctx, device_step& step, std::uint32_t worker) {
    if (worker != 0 || step.number() != 3)
      return;
    run.lose(worker_id{0});
    // Finds the group gone, and no other.
    static_cast<void>(ctx.evaluate(8, 1, [](auto, auto) {}));
  };
  run.train(20);
  CHECK(run.results[0].reason.code == errc::aborted);
  CHECK(run.results[0].reason.message.find("is lost") != std::string::npos);
  run.check_results(20, {1});
  CHECK(fake_nccl::living == 0);
  CHECK(fake_nccl::violations == 0);
}

TEST_CASE("NCCL listens where the data plane does, for the life of the process, unless the user says where") {
  ::unsetenv("NCCL_SOCKET_IFNAME");
  std::optional<std::string> set;
  CHECK(runtime::set_nccl_interface("192.0.2.1", set).error().code == errc::unreachable);
  REQUIRE(runtime::set_nccl_interface("127.0.0.1", set));
  CHECK(set == "lo");
  CHECK(std::getenv("NCCL_SOCKET_IFNAME") == std::string{"=lo"});
  CHECK(runtime::set_nccl_interface("127.0.0.1", set));
  set = "eth7";
  CHECK(runtime::set_nccl_interface("127.0.0.1", set).error().code == errc::unsatisfiable);
  set.reset();
  ::setenv("NCCL_SOCKET_IFNAME", "ib0", 1);
  CHECK(runtime::set_nccl_interface("192.0.2.1", set));
  CHECK_FALSE(set);
  CHECK(std::getenv("NCCL_SOCKET_IFNAME") == std::string{"ib0"});
  ::unsetenv("NCCL_SOCKET_IFNAME");
}

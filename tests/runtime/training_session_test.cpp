#include "worker/session.hpp"

#include <troupe/data_order.hpp>

#include <troupe/actors/decisions/checkpoint_attempts.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <doctest/doctest.h>
#include <fake_device.hpp>
#include <hidden_memory.hpp>
#include <scratch_directory.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <future>
#include <latch>
#include <map>
#include <new>
#include <numeric>
#include <set>
#include <stdexcept>
#include <sys/stat.h>
#include <thread>
#include <tuple>

namespace troupe {

namespace {

namespace fs = std::filesystem;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

using scratch = testing::scratch_directory;

/// What a run of the tests is, beyond its training function.
struct settings {
  std::uint32_t workers = 1;
  std::uint32_t shards = 8;
  std::uint64_t steps = 12;
  std::uint64_t seed = 1;
  std::uint64_t checkpoint_every = 0;
  /// So many that none is skipped.
  std::uint32_t checkpoints_in_flight = 64;
  bool reuse_unchanged = true;
  transport_kind transport = transport_kind::shm;
  bool fast = false;
  bool keep_ledger = false;
  bool check_every_step = false;
  std::uint64_t verify_determinism = 0;
  /// Each worker has a fake GPU.
  bool has_gpus = false;
  fs::path restore_from;
  bool restore_step = true;
  bool is_finished = false;
  bool may_skip = true;
  bool end_on_not_finite = false;
};

const auto this_run = run_id{};
constexpr auto this_generation = generation_id{3};

/// Trainer, collectives actor and checkpoint store of a run whose workers are threads of this process.
class fake_driver {
 public:
  fake_driver(std::uint32_t workers, fs::path checkpoints) : workers_(workers), checkpoints_(std::move(checkpoints)) {}

  expected<exchange_result> exchange(const exchange_request& message) {
    auto lock = std::unique_lock{mutex_};
    ++exchanges_;
    auto& blobs = blobs_[message.sequence];
    blobs[message.rank.value] = message.blob;
    changed_.notify_all();
    changed_.wait(lock, [&] { return aborted_ || blobs.size() == workers_; });
    if (blobs.size() < workers_)
      return fail(errc::aborted, "the run is ending");
    exchange_result result{message.generation, {}};
    for (const auto& [rank, blob] : blobs)
      result.blobs.push_back(blob);
    return result;
  }

  expected<std::vector<std::vector<collectives::unique_fd>>>
  exchange_descriptors(const runtime::descriptor_request& request, std::span<const int> mine) {
    auto lock = std::unique_lock{mutex_};
    ++exchanges_;
    for (auto fd : mine)
      descriptors_[request.local_rank].emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    changed_.notify_all();
    changed_.wait(lock, [this] { return aborted_ || descriptors_.size() == workers_; });
    if (descriptors_.size() < workers_)
      return fail(errc::aborted, "the run is ending");
    std::vector<std::vector<collectives::unique_fd>> result(workers_);
    for (const auto& [rank, theirs] : descriptors_)
      for (const auto& each : theirs)
        if (rank != request.local_rank)
          result[rank].emplace_back(::fcntl(each.get(), F_DUPFD_CLOEXEC, 3));
    return result;
  }

  expected<plan_accepted> agree(const run_plan& plan) {
    auto lock = std::unique_lock{mutex_};
    plans_.insert_or_assign(plan.worker, plan);
    changed_.notify_all();
    changed_.wait(lock, [this] { return aborted_ || plans_.size() == workers_; });
    if (plans_.size() < workers_)
      return fail(errc::aborted, "the run is ending");
    for (auto [worker, each] : plans_) {
      each.worker = plan.worker;
      if (each != plan)
        return fail(errc::mismatch, "the workers disagree about the run");
    }
    return plan_accepted{plan.generation};
  }

  expected<checkpoint_outcome> deliver(const checkpoint_part& part) {
    if (on_part)
      on_part(part);
    auto lock = std::unique_lock{mutex_};
    if (auto whole = attempts_.add(part, {})) {
      outcomes_[part.step] = commit(part.step, std::move(*whole));
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return aborted_ || outcomes_.contains(part.step); });
    if (!outcomes_.contains(part.step))
      return fail(errc::aborted, "the run is ending");
    return outcomes_[part.step];
  }

  expected<void> push(const metrics_batch& batch) {
    auto lock = std::lock_guard{mutex_};
    batches_.push_back(batch);
    return {};
  }

  /// The last step of which a report of this rank has come.
  std::uint64_t reported(rank_id rank) {
    auto lock = std::lock_guard{mutex_};
    std::uint64_t last = 0;
    for (const auto& batch : batches_)
      if (batch.rank == rank && !batch.rows.empty())
        last = batch.rows.back().step.value;
    return last;
  }

  void abort() {
    auto lock = std::lock_guard{mutex_};
    aborted_ = true;
    changed_.notify_all();
  }

  /// Called with every part as it comes, from the training threads.
  std::function<void(const checkpoint_part&)> on_part;
  /// What becomes of every checkpoint, if not what becomes of it.
  std::optional<error> refuse_checkpoints;
  /// The one that is asked to save the state before the run ends.
  std::optional<worker_id> saver;

  int exchanges_ = 0;
  std::vector<metrics_batch> batches_;
  std::map<worker_id, run_plan> plans_;
  std::map<step_id, checkpoint_outcome> outcomes_;

 private:
  checkpoint_outcome commit(step_id step, expected<actors::complete_checkpoint> whole) {
    if (refuse_checkpoints)
      return {step, {}, *refuse_checkpoints};
    if (!whole)
      return {step, {}, whole.error()};
    auto path =
        serialization::commit_checkpoint(checkpoints_, checkpoints_ / whole->temporary_directory, whole->content);
    if (!path)
      return {step, {}, path.error()};
    return {step, path->string(), {}};
  }

  std::uint32_t workers_;
  fs::path checkpoints_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool aborted_ = false;
  std::map<std::uint64_t, std::map<std::uint32_t, std::string>> blobs_;
  std::map<std::uint32_t, std::vector<collectives::unique_fd>> descriptors_;
  actors::checkpoint_attempts attempts_;
};

class fake_link : public runtime::driver_client {
 public:
  explicit fake_link(fake_driver& driver) : driver_(driver) {}

  expected<exchange_result> exchange(const exchange_request& message) override { return driver_.exchange(message); }
  expected<std::vector<std::vector<collectives::unique_fd>>>
  exchange_descriptors(const runtime::descriptor_request& request, std::span<const int> mine) override {
    return driver_.exchange_descriptors(request, mine);
  }
  expected<plan_accepted> agree(const run_plan& plan) override { return driver_.agree(plan); }
  expected<next_generation> regroup(const regroup_report& report) override {
    if (report.worker == driver_.saver)
      return next_generation{save_and_leave{{errc::aborted, "the run is ending"}, {}}};
    return fail(errc::aborted, "the run is ending");
  }
  expected<exchange_result> exchange_staging(const exchange_request&) override {
    return fail(errc::internal, "this fake does not implement it");
  }
  void tell(const caught_up&) override {}
  void end(const exchange_ended&) override {}
  expected<checkpoint_outcome> deliver(const checkpoint_part& part) override { return driver_.deliver(part); }
  expected<checkpoint_outcome> deliver_last(const checkpoint_part& part) override { return driver_.deliver(part); }
  expected<void> push(const metrics_batch& batch) override { return driver_.push(batch); }
  void finish(const worker_finished&) override {}

 private:
  fake_driver& driver_;
};

/// The workers of a run, as threads.
class session_group {
 public:
  explicit session_group(settings config)
      : config_(std::move(config)), driver_(config_.workers, place_.path() / "checkpoints") {
    results_.resize(config_.workers);
    for (std::uint32_t rank = 0; rank < config_.workers; ++rank) {
      links_.push_back(std::make_unique<fake_link>(driver_));
      runtime::device_factories factories;
      factories.open_device = [rank]() -> expected<std::shared_ptr<collectives::device>> {
        collectives::testing::fake_device::options options;
        options.seed = rank + 1;
        return std::make_shared<collectives::testing::fake_device>(options);
      };
      sessions_.push_back(std::make_unique<train_context::impl>(begin_of(rank), *links_.back(), std::move(factories)));
    }
  }

  /// Trains on all ranks; `meanwhile` runs on the calling thread. As a trainer does, aborts the others once one has
  /// failed.
  const std::vector<worker_finished>& run(const std::function<void(train_context&)>& function,
                                          const std::function<void()>& meanwhile = {}) {
    auto all_done = std::latch{std::ptrdiff_t{config_.workers} + 1};
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < config_.workers; ++rank)
      threads.emplace_back([&, rank] {
        auto result = sessions_[rank]->run(function);
        if (result.reason.code != errc::none)
          abort({errc::aborted, "the run is ending: " + result.reason.message});
        {
          auto lock = std::lock_guard{mutex_};
          results_[rank] = std::move(result);
          ++finished_;
          changed_.notify_all();
        }
        // All leave their group at the same time, as processes would.
        all_done.arrive_and_wait();
        sessions_[rank].reset();
      });
    if (meanwhile)
      meanwhile();
    // From here on the sessions may go.
    all_done.count_down();
    for (auto& each : threads)
      each.join();
    return results_;
  }

  void wait_for_finished(std::uint32_t n) {
    auto lock = std::unique_lock{mutex_};
    changed_.wait(lock, [&] { return finished_ >= n; });
  }

  void command(std::uint32_t rank, std::uint64_t sequence, decltype(control_command::what) what) {
    sessions_[rank]->command({this_run, sequence, what});
  }

  std::string describe(std::uint32_t rank) { return sessions_[rank]->describe(); }

  void abort(const error& reason, generation_id generation = this_generation) {
    driver_.abort();
    for (auto& each : sessions_)
      each->abort({this_run, generation, reason});
  }

  fake_driver& driver() { return driver_; }
  fs::path checkpoints() const { return place_.path() / "checkpoints"; }

  std::vector<std::uint64_t> checkpoint_steps() const {
    std::vector<std::uint64_t> result;
    for (const auto& each : value_or_throw(serialization::list_checkpoints(checkpoints())))
      result.push_back(each.step.value);
    return result;
  }

 private:
  begin_training begin_of(std::uint32_t rank) const {
    begin_training result;
    result.run = this_run;
    result.place.generation = this_generation;
    result.worker = worker_id{10 + rank};
    result.place.rank = rank_id{rank};
    result.place.world_size = config_.workers;
    result.place.local_rank = rank;
    result.place.local_world_size = config_.workers;
    result.place.transport = config_.workers == 1 ? transport_kind::self : config_.transport;
    result.place.nodes = {{0, config_.workers}};
    result.place.data_address = "127.0.0.1";
    result.settings.function = "train";
    result.settings.name = "test";
    result.settings.directory = place_.path().string();
    result.settings.seed = config_.seed;
    result.settings.shards = config_.shards;
    result.settings.configuration = R"({"rate":0.5})";
    result.settings.options = R"({"verbose":true})";
    result.settings.steps = config_.steps;
    result.resume.checkpoint = config_.restore_from.string();
    result.resume.restore_step = config_.restore_step;
    result.resume.is_finished = config_.is_finished;
    result.checkpoints.may_skip = config_.may_skip;
    result.settings.end_on_not_finite = config_.end_on_not_finite;
    result.checkpoints.every_steps = config_.checkpoint_every;
    result.checkpoints.max_in_flight = config_.checkpoints_in_flight;
    result.checkpoints.reuse_unchanged = config_.reuse_unchanged;
    result.settings.fast_reduction = config_.fast;
    result.settings.keep_ledger = config_.keep_ledger;
    result.settings.check_every_step = config_.check_every_step;
    result.settings.verify_determinism = config_.verify_determinism;
    result.device.gpus = config_.has_gpus ? 0.5 : 0;
    result.settings.collective_timeout_ms = 60'000;
    return result;
  }

  settings config_;
  scratch place_;
  fake_driver driver_;
  std::vector<std::unique_ptr<fake_link>> links_;
  std::vector<std::unique_ptr<train_context::impl>> sessions_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t finished_ = 0;
  std::vector<worker_finished> results_;
};

// -- a small linear model ---------------------------------------------------------------------------------------------

constexpr std::size_t dimensions = 7;
constexpr std::uint64_t data_samples = 50;
using vector = std::array<float, dimensions>;

struct sample {
  vector x;
  float y = 0;
};

const std::vector<sample>& data() {
  static const auto result = [] {
    auto stream = random_stream{99, "data"};
    std::vector<sample> all(data_samples);
    for (auto& each : all) {
      each.y = 1;
      for (std::size_t i = 0; i < dimensions; ++i) {
        each.x[i] = static_cast<float>(stream.uniform() * 2 - 1);
        each.y += each.x[i] * static_cast<float>(i);
      }
    }
    return all;
  }();
  return result;
}

struct model {
  vector weights{};
  vector momentum{};

  explicit model(std::uint64_t seed) {
    auto stream = random_stream{seed, "weights"};
    for (auto& each : weights)
      each = static_cast<float>(stream.uniform());
  }

  /// Adds one sample's gradient of half the squared error, `noise` times as large; returns the error's square.
  double add_gradient(const sample& one, float noise, std::span<float> gradient) const {
    auto error = -one.y;
    for (std::size_t i = 0; i < dimensions; ++i)
      error += weights[i] * one.x[i];
    for (std::size_t i = 0; i < dimensions; ++i)
      gradient[i] += error * one.x[i] * noise;
    return static_cast<double>(error) * error;
  }

  void apply(std::span<const float> gradient, std::uint64_t step) {
    auto rate = 0.1f / static_cast<float>(step);
    for (std::size_t i = 0; i < dimensions; ++i) {
      momentum[i] = 0.5f * momentum[i] + gradient[i];
      weights[i] -= rate * momentum[i];
    }
  }

  bool operator==(const model& other) const {
    return std::memcmp(weights.data(), other.weights.data(), sizeof weights) == 0 &&
           std::memcmp(momentum.data(), other.momentum.data(), sizeof momentum) == 0;
  }
};

step_plan plan_with(std::uint64_t batch) {
  step_plan plan;
  plan.data = {data_samples, "fixed"};
  plan.batch_samples = batch;
  plan.gradient_elements = dimensions;
  return plan;
}

void track(train_context& ctx, model& mine) {
  ctx.state().track("weights", std::span<float>{mine.weights});
  ctx.state().track("momentum", std::span<float>{mine.momentum});
}

void compute(step& step, const model& mine) {
  for (auto& shard : step.shards()) {
    auto stream = shard.random();
    for (auto index : shard.samples())
      shard.add("loss", mine.add_gradient(data()[index], static_cast<float>(stream.uniform()), shard.gradient()));
  }
}

/// The body that keeps to the rules.
void ordinary_step(step& step, model& mine) {
  compute(step, mine);
  mine.apply(step.all_reduce(), step.number());
  step.report({{"loss", step.mean_loss()}});
}

/// What a run must end with, from the definitions alone: no shard lists, no communicator, no accumulator.
class reference {
 public:
  reference(std::uint32_t shards, std::uint64_t batch, std::uint64_t seed)
      : shards_(shards), batch_(batch), seed_(seed) {}

  model train(model state, std::uint64_t first, std::uint64_t last) {
    for (auto step = first; step <= last; ++step) {
      auto top = std::uint32_t{1};
      while (top < shards_)
        top *= 2;
      auto sum = subtree(state, step, 0, top);
      for (auto& each : sum.gradient)
        each /= static_cast<float>(batch_);
      losses.push_back(sum.loss / static_cast<double>(batch_));
      state.apply(sum.gradient, step);
    }
    return state;
  }

  std::vector<double> losses;

 private:
  struct contribution {
    vector gradient{};
    double loss = 0;
  };

  contribution subtree(const model& state, std::uint64_t step, std::uint32_t first, std::uint32_t width) {
    if (width == 1)
      return leaf(state, step, first);
    auto left = subtree(state, step, first, width / 2);
    if (first + width / 2 >= shards_)
      return left;
    auto right = subtree(state, step, first + width / 2, width / 2);
    for (std::size_t i = 0; i < dimensions; ++i)
      left.gradient[i] += right.gradient[i];
    left.loss += right.loss;
    return left;
  }

  contribution leaf(const model& state, std::uint64_t step, std::uint32_t shard) {
    contribution result;
    auto stream = random_stream{seed_, step_id{step}, shard_id{shard}};
    for (auto i = shard * batch_ / shards_; i < (shard + 1) * batch_ / shards_; ++i) {
      auto position = (step - 1) * batch_ + i;
      auto index = keyed_permutation{data_samples, seed_, position / data_samples}(position % data_samples);
      result.loss += state.add_gradient(data()[index], static_cast<float>(stream.uniform()), result.gradient);
    }
    return result;
  }

  std::uint32_t shards_;
  std::uint64_t batch_;
  std::uint64_t seed_;
};

/// The ordinary run's loss in this step.
double loss_of_step(std::size_t step) {
  auto run = reference{8, 24, 1};
  run.train(model{1}, 1, step);
  return run.losses.back();
}

/// What became of an ordinary run.
struct outcome {
  std::vector<model> models;
  std::vector<worker_finished> finished;
};

outcome train_on(session_group& group, const settings& config, std::uint64_t batch,
                 const std::function<void()>& meanwhile = {}) {
  outcome result;
  result.models.assign(config.workers, model{0});
  result.finished = group.run(
      [&](train_context& ctx) {
        auto mine = model{ctx.seed()};
        track(ctx, mine);
        ctx.for_each_step(plan_with(batch), [&](step& step) { ordinary_step(step, mine); });
        result.models[ctx.rank()] = mine;
      },
      meanwhile);
  return result;
}

/// The tensors of a model in memory that no pointer leads to, as on a device.
struct hidden_model {
  std::shared_ptr<testing::hidden_memory> weights = std::make_shared<testing::hidden_memory>(sizeof(vector));
  std::shared_ptr<testing::hidden_memory> momentum = std::make_shared<testing::hidden_memory>(sizeof(vector));

  [[nodiscard]] model load() const {
    model result{0};
    std::ranges::copy(weights->values<float>(), result.weights.begin());
    std::ranges::copy(momentum->values<float>(), result.momentum.begin());
    return result;
  }
  void store(const model& from) const {
    weights->assign(std::vector(from.weights.begin(), from.weights.end()));
    momentum->assign(std::vector(from.momentum.begin(), from.momentum.end()));
  }
  void track(train_context& ctx) const {
    ctx.state().track("weights", dtype::f32, {dimensions}, weights);
    ctx.state().track("momentum", dtype::f32, {dimensions}, momentum);
  }
};

outcome train_hidden_on(session_group& group, const settings& config, std::uint64_t batch) {
  outcome result;
  result.models.assign(config.workers, model{0});
  result.finished = group.run([&](train_context& ctx) {
    hidden_model mine;
    mine.store(model{ctx.seed()});
    mine.track(ctx);
    ctx.for_each_step(plan_with(batch), [&](step& step) {
      auto copy = mine.load();
      ordinary_step(step, copy);
      mine.store(copy);
    });
    result.models[ctx.rank()] = mine.load();
  });
  return result;
}

/// `digits` of the state's identity: none in a custom loop, whose state is in checkpoints only.
void check_completed(const std::vector<worker_finished>& finished, std::uint64_t step, std::size_t digits = 64) {
  for (const auto& each : finished) {
    CHECK(each.reason == error{});
    CHECK(each.step.value == step);
    CHECK_FALSE(each.stopped);
    CHECK(each.run == this_run);
    CHECK(each.generation == this_generation);
    CHECK(each.state_sha256.size() == digits);
    CHECK(each.state_sha256 == finished[0].state_sha256);
  }
  for (std::uint32_t rank = 0; rank < finished.size(); ++rank)
    CHECK(finished[rank].worker == worker_id{10 + rank});
}

/// What a single worker's run with this function ends with.
error reason_of(const std::function<void(train_context&)>& function, settings config = {}) {
  auto group = session_group{std::move(config)};
  return group.run(function)[0].reason;
}

/// What a run ends with whose body is `body`.
error reason_of_body(const std::function<void(step&, model&)>& body, settings config = {}) {
  return reason_of(
      [&](train_context& ctx) {
        auto mine = model{ctx.seed()};
        track(ctx, mine);
        ctx.for_each_step(plan_with(24), [&](step& step) { body(step, mine); });
      },
      std::move(config));
}

// -- the same bits ----------------------------------------------------------------------------------------------------

TEST_CASE("a run ends with the bits of the definition on any number of workers") {
  for (std::uint32_t shards : {8u, 13u})
    // The second batch leaves shards without samples, the third is larger than the data.
    for (std::uint64_t batch : {24u, 5u, 70u}) {
      auto config = settings{};
      config.shards = shards;
      auto definition = reference{shards, batch, config.seed};
      auto expected = definition.train(model{config.seed}, 1, config.steps);
      auto identity = std::string{};
      for (std::uint32_t workers : {1u, 2u, 3u, 4u}) {
        CAPTURE(shards);
        CAPTURE(batch);
        CAPTURE(workers);
        config.workers = workers;
        auto group = session_group{config};
        auto result = train_on(group, config, batch);
        check_completed(result.finished, config.steps);
        for (const auto& each : result.models)
          CHECK(each == expected);
        if (identity.empty())
          identity = result.finished[0].state_sha256;
        CHECK(result.finished[0].state_sha256 == identity);
        // The losses, too, are those of the definition, on every rank.
        for (std::uint32_t rank = 0; rank < workers; ++rank) {
          std::vector<double> losses;
          for (const auto& report : group.driver().batches_)
            if (report.rank.value == rank)
              for (const auto& row : report.rows)
                losses.push_back(row.values.at("loss"));
          CHECK(losses == definition.losses);
        }
      }
    }
}

TEST_CASE("another seed, another number of shards and one more step each change the result") {
  auto identity_of = [](const settings& config) {
    auto group = session_group{config};
    return train_on(group, config, 24).finished[0].state_sha256;
  };
  auto same = settings{};
  auto seed = settings{};
  seed.seed = 2;
  auto shards = settings{};
  shards.shards = 13;
  auto steps = settings{};
  steps.steps = 13;
  CHECK(identity_of(same) == identity_of(same));
  std::set<std::string> all{identity_of(same), identity_of(seed), identity_of(shards), identity_of(steps)};
  CHECK(all.size() == 4);
}

TEST_CASE("the context says who and where its worker is") {
  auto config = settings{};
  config.workers = 2;
  auto group = session_group{config};
  std::array<std::vector<std::uint64_t>, 2> seen;
  std::array<double, 2> drawn{};
  std::array<std::string, 2> texts;
  for (const auto& each : group.run([&](train_context& ctx) {
         auto rank = ctx.rank();
         seen[rank] = {rank,
                       ctx.world_size(),
                       ctx.local_rank(),
                       ctx.local_world_size(),
                       ctx.node_rank(),
                       ctx.generation(),
                       ctx.seed(),
                       ctx.steps(),
                       ctx.restored_step()};
         drawn[rank] = ctx.random("x").uniform();
         texts[rank] = ctx.run_name() + " " + ctx.device() + " " + ctx.config().dump() + " " + ctx.options().dump();
         if (ctx.run_directory() != group.checkpoints().parent_path() || ctx.stop_requested())
           throw std::logic_error{"a wrong directory, or a stop that nobody asked for"};
       }))
    CHECK(each.reason == error{});
  for (std::uint64_t rank : {0u, 1u}) {
    CHECK(seen[rank] == std::vector<std::uint64_t>{rank, 2, rank, 2, 0, 3, 1, 12, 0});
    CHECK(texts[rank] == R"(test cpu {"rate":0.5} {"verbose":true})");
    CHECK(drawn[rank] == random_stream{1, "x"}.uniform());
  }
}

TEST_CASE("a step knows its number, batch and epoch, and the last") {
  std::vector<std::uint64_t> epochs;
  std::vector<bool> last;
  CHECK(reason_of_body([&](step& step, model& mine) {
          CHECK(step.number() == epochs.size() + 1);
          CHECK(step.id().value == step.number());
          CHECK(step.batch_samples() == 24);
          CHECK(step.shards().size() == 8);
          epochs.push_back(step.epoch());
          last.push_back(step.last());
          ordinary_step(step, mine);
        }) == error{});
  CHECK(epochs == std::vector<std::uint64_t>{0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5});
  CHECK(std::ranges::count(last, true) == 1);
  CHECK(last.back());
}

TEST_CASE("a contribution that lies elsewhere counts like one made in place") {
  model in_place{0};
  model elsewhere{0};
  CHECK(reason_of_body([&](step& step, model& mine) {
          ordinary_step(step, mine);
          in_place = mine;
        }) == error{});
  CHECK(reason_of_body([&](step& step, model& mine) {
          for (auto& shard : step.shards()) {
            vector own{};
            auto stream = shard.random();
            for (auto index : shard.samples())
              mine.add_gradient(data()[index], static_cast<float>(stream.uniform()), own);
            shard.contribute(own);
          }
          mine.apply(step.all_reduce(), step.number());
          elsewhere = mine;
        }) == error{});
  CHECK(in_place == elsewhere);
}

TEST_CASE("the ledger's shards partition every step") {
  auto config = settings{};
  config.workers = 3;
  config.shards = 13;
  config.keep_ledger = true;
  auto group = session_group{config};
  check_completed(train_on(group, config, 24).finished, config.steps);
  std::map<std::uint64_t, std::vector<int>> times;
  for (const auto& batch : group.driver().batches_)
    for (const auto& row : batch.ledger) {
      CHECK(row.generation == this_generation);
      auto& step = times[row.step.value];
      step.resize(config.shards);
      for (auto v = row.shards.first; v < row.shards.last; ++v)
        ++step.at(v);
    }
  CHECK(times.size() == config.steps);
  for (const auto& [step, counts] : times)
    CHECK(counts == std::vector<int>(config.shards, 1));
}

/// The digests of all pieces by step, each from two ranks where there are two; the state's is the last.
std::map<std::uint64_t, std::map<std::uint32_t, std::uint64_t>> digests_of(session_group& group) {
  std::map<std::uint64_t, std::map<std::uint32_t, std::uint64_t>> result;
  for (const auto& batch : group.driver().batches_)
    for (const auto& row : batch.ledger) {
      auto& step = result[row.step.value];
      auto piece = row.digest.first;
      for (auto digest : row.digest.digests) {
        CHECK(step.emplace(piece, digest).first->second == digest);
        piece = (piece + 1) % row.digest.pieces;
      }
      CHECK(step.emplace(row.digest.pieces, row.digest.state).first->second == row.digest.state);
    }
  return result;
}

TEST_CASE("the ledger's digests are complete, differ from step to step, and are the same for any number of workers") {
  auto digests = [](std::uint32_t workers) {
    auto config = settings{};
    config.workers = workers;
    config.shards = 13;
    config.keep_ledger = true;
    auto group = session_group{config};
    check_completed(train_on(group, config, 24).finished, config.steps);
    return digests_of(group);
  };
  const auto alone = digests(1);
  CHECK(alone.size() == settings{}.steps);
  auto all = std::set<std::uint64_t>{};
  for (const auto& [step, pieces] : alone) {
    // The gradient in one piece, the metrics, the state.
    CHECK(pieces.size() == 3);
    all.insert(pieces.at(0));
  }
  CHECK(all.size() == alone.size());
  for (auto workers : {2u, 3u, 8u})
    CHECK(digests(workers) == alone);
}

TEST_CASE("the driver is told where the time of every rank's steps went") {
  auto config = settings{};
  config.workers = 3;
  auto group = session_group{config};
  constexpr auto pause = std::chrono::milliseconds{2};
  const auto finished = group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      if (ctx.rank() == 1)
        std::this_thread::sleep_for(pause);
      ordinary_step(step, mine);
    });
  });
  check_completed(finished, config.steps);
  std::map<std::uint32_t, times_row> sums;
  for (const auto& batch : group.driver().batches_)
    for (const auto& row : batch.times) {
      CHECK(row.rank == batch.rank);
      CHECK(row.generation == this_generation);
      auto& sum = sums[row.rank.value];
      CHECK(row.first.value == sum.last.value + 1);
      sum.last = row.last;
      sum.steps += row.steps;
      sum.compute_us += row.compute_us;
      sum.sent_bytes += row.sent_bytes;
      // Each step is in one bin.
      CHECK(std::accumulate(row.durations.begin(), row.durations.end(), 0u) == row.steps);
      CHECK(row.resident_bytes > 1'000'000);
    }
  REQUIRE(sums.size() == config.workers);
  for (const auto& [rank, sum] : sums)
    CHECK(sum.steps == config.steps);
  for (const auto& [rank, sum] : sums)
    CHECK(sum.sent_bytes > 0);
  CHECK(std::chrono::microseconds{sums[1].compute_us} >= pause * config.steps);
}

TEST_CASE("without a ledger none is sent") {
  auto config = settings{};
  auto group = session_group{config};
  train_on(group, config, 24);
  CHECK(!group.driver().batches_.empty());
  for (const auto& batch : group.driver().batches_)
    CHECK(batch.ledger.empty());
}

TEST_CASE("with the fast reduction replicas agree, and are near the exact result") {
  auto config = settings{};
  config.workers = 3;
  config.shards = 13;
  config.fast = true;
  auto exact = reference{13, 24, config.seed}.train(model{config.seed}, 1, config.steps);
  auto group = session_group{config};
  auto result = train_on(group, config, 24);
  check_completed(result.finished, config.steps);
  for (const auto& each : result.models) {
    CHECK(each == result.models[0]);
    for (std::size_t i = 0; i < dimensions; ++i)
      CHECK(each.weights[i] == doctest::Approx(exact.weights[i]).epsilon(1e-4));
  }
}

/// How the body says that pieces of the gradient are complete.
enum class completion { never, backward, forward, only_the_end };

/// A gradient of several parts, whose every element depends on the samples and the weights; gives the final state.
std::string train_in_parts(settings config, std::uint64_t bucket_bytes, completion how) {
  constexpr std::uint64_t elements = 6'001;
  constexpr std::uint64_t piece = 700;
  auto group = session_group{config};
  const auto& finished = group.run([&](train_context& ctx) {
    std::vector<float> weights(elements, 1.0f);
    ctx.state().track("weights", weights);
    auto plan = plan_with(24);
    plan.gradient_elements = elements;
    plan.bucket_bytes = bucket_bytes;
    ctx.for_each_step(plan, [&](step& step) {
      for (auto& shard : step.shards()) {
        auto add = [&](std::uint64_t first, std::uint64_t last) {
          for (auto sample : shard.samples())
            for (auto i = first; i < last; ++i)
              shard.gradient()[i] += weights[i] / static_cast<float>(1 + (sample * 31 + i) % 97);
        };
        // Written piece by piece in the order in which they are told, so that a part that is reduced too early is
        // reduced without something.
        for (std::uint64_t n = 0; n < (elements + piece - 1) / piece; ++n) {
          auto k = how == completion::forward ? n : (elements - 1) / piece - n;
          auto first = k * piece;
          auto last = std::min(elements, first + piece);
          add(first, last);
          if (how == completion::backward || how == completion::forward || (how == completion::only_the_end && n < 3))
            shard.mark_ready(first, last - first);
        }
        shard.add("loss", 1.0);
      }
      auto gradient = step.all_reduce();
      CHECK(step.mean_loss() == static_cast<double>(config.shards) / 24);
      for (std::uint64_t i = 0; i < elements; ++i)
        weights[i] -= 0.25f * gradient[i];
    });
  });
  for (const auto& each : finished) {
    CHECK(each.reason == error{});
    CHECK(each.state_sha256 == finished[0].state_sha256);
  }
  return finished[0].state_sha256;
}

TEST_CASE("a gradient that is reduced in parts, while it is still computed or not, ends with the same bits") {
  auto config = settings{};
  config.steps = 5;
  const auto whole = train_in_parts(config, 1 << 20, completion::never);
  for (auto transport : {transport_kind::shm, transport_kind::tcp})
    for (auto workers : {1u, 2u, 3u})
      for (auto bucket_bytes : {std::uint64_t{4096}, std::uint64_t{9000}, std::uint64_t{1} << 20})
        for (auto how : {completion::never, completion::backward, completion::forward, completion::only_the_end}) {
          INFO("workers ", workers, ", bytes in a part ", bucket_bytes, ", completion ", static_cast<int>(how));
          config.transport = transport;
          config.workers = workers;
          CHECK(train_in_parts(config, bucket_bytes, how) == whole);
        }
}

TEST_CASE("the reduction of a part begins when its last contribution is in, and not before") {
  auto group = session_group{settings{}};
  const auto& finished = group.run([&](train_context& ctx) {
    auto plan = plan_with(24);
    plan.gradient_elements = 3072;
    plan.bucket_bytes = 4096;
    ctx.for_each_step(plan, [&](step& step) {
      for (auto& shard : step.shards()) {
        auto begun = [&](std::uint64_t parts) {
          // Four calls in each step before: three parts and the metrics, and the barrier.
          auto call = "reduce_leaves #" + std::to_string((step.number() - 1) * 5 + parts) + " ";
          return contains(group.describe(0), call);
        };
        auto is_last = shard.id().value + 1 == 8;
        shard.mark_ready(2048, 1023);
        CHECK_FALSE(begun(1));
        shard.mark_ready(3071, 1);
        while (is_last && !begun(1))
          std::this_thread::yield();
        // The begin of the gradient has to wait for its middle.
        shard.mark_ready(0, 1024);
        CHECK_FALSE(begun(2));
        shard.mark_ready(1024, 1024);
        while (is_last && !begun(3))
          std::this_thread::yield();
        CHECK(begun(3) == is_last);
      }
      step.all_reduce();
    });
  });
  CHECK(finished[0].reason == error{});
}

TEST_CASE("ranks that own no shards take part in the reduction of parts") {
  auto config = settings{};
  config.steps = 3;
  config.shards = 1;
  const auto alone = train_in_parts(config, 4096, completion::backward);
  config.workers = 3;
  CHECK(train_in_parts(config, 4096, completion::backward) == alone);
}

TEST_CASE("elements that there are not, or that come after all_reduce, cannot be complete") {
  for (auto after : {false, true}) {
    auto group = session_group{settings{}};
    const auto& finished = group.run([&](train_context& ctx) {
      auto mine = model{ctx.seed()};
      track(ctx, mine);
      ctx.for_each_step(plan_with(24), [&](step& step) {
        shard* last = nullptr;
        for (auto& each : step.shards()) {
          last = &each;
          if (!after)
            each.mark_ready(dimensions, 1);
        }
        step.all_reduce();
        REQUIRE(last != nullptr);
        last->mark_ready(0, 1);
      });
    });
    CHECK(finished[0].reason.code == errc::user_error);
    CHECK(contains(finished[0].reason.message, "shard.mark_ready("));
  }
}

TEST_CASE("an evaluation gives the same bits on any number of workers, and sees every sample once") {
  for (std::uint64_t samples : {1u, 5u, 1000u}) {
    std::vector<double> first;
    for (std::uint32_t workers : {1u, 2u, 3u, 4u}) {
      CAPTURE(samples);
      CAPTURE(workers);
      auto config = settings{};
      config.workers = workers;
      auto group = session_group{config};
      std::vector<std::vector<double>> sums(workers);
      for (const auto& each : group.run([&](train_context& ctx) {
             sums[ctx.rank()] =
                 ctx.evaluate(samples, 3, [](std::span<const std::uint64_t> indices, std::span<double> out) {
                   for (auto i : indices) {
                     out[0] += 1;
                     out[1] += static_cast<double>(i) + 1;
                     out[2] += 1.0 / (static_cast<double>(i) + 3);
                   }
                 });
           }))
        CHECK(each.reason == error{});
      if (first.empty())
        first = sums[0];
      for (const auto& each : sums)
        CHECK(each == first);
      auto n = static_cast<double>(samples);
      REQUIRE(first.size() == 3);
      CHECK(first[0] == n);
      CHECK(first[1] == n * (n + 1) / 2);
    }
  }
}

TEST_CASE("an evaluation inside of a step changes nothing") {
  auto config = settings{};
  config.workers = 2;
  auto expected = reference{8, 24, 1}.train(model{1}, 1, config.steps);
  auto group = session_group{config};
  std::vector<model> models(2, model{0});
  check_completed(group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      auto count = [&] {
        return ctx.evaluate(9, 1, [](auto indices, auto sums) { sums[0] += static_cast<double>(indices.size()); });
      };
      if (count()[0] != 9)
        throw std::logic_error{"a wrong count"};
      ordinary_step(step, mine);
      if (count()[0] != 9)
        throw std::logic_error{"a wrong count"};
    });
    models[ctx.rank()] = mine;
  }),
                  config.steps);
  CHECK(models[0] == expected);
  CHECK(models[1] == expected);
}

// -- commands and checkpoints -----------------------------------------------------------------------------------------

TEST_CASE("a stop that reaches one rank late ends all ranks after the same step") {
  for (std::uint32_t early : {0u, 2u}) {
    auto config = settings{};
    config.workers = 3;
    auto group = session_group{config};
    // The others hear of it only once the first has acted on it.
    group.driver().on_part = [&](const checkpoint_part& part) {
      if (part.rank.value == early)
        for (std::uint32_t rank = 0; rank < config.workers; ++rank)
          if (rank != early)
            group.command(rank, 1, stop_command{});
    };
    std::vector<model> models(config.workers, model{0});
    const auto& finished = group.run([&](train_context& ctx) {
      auto mine = model{ctx.seed()};
      track(ctx, mine);
      ctx.for_each_step(plan_with(24), [&](step& step) {
        if (step.number() == 5 && ctx.rank() == early)
          group.command(early, 1, stop_command{});
        ordinary_step(step, mine);
      });
      if (!ctx.stop_requested())
        throw std::logic_error{"the loop ended without a stop"};
      models[ctx.rank()] = mine;
    });
    auto expected = reference{8, 24, 1}.train(model{1}, 1, 5);
    for (std::uint32_t rank = 0; rank < config.workers; ++rank) {
      CHECK(finished[rank].reason == error{});
      CHECK(finished[rank].stopped);
      CHECK(finished[rank].step.value == 5);
      CHECK(finished[rank].state_sha256 == finished[0].state_sha256);
      CHECK(models[rank] == expected);
    }
    CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{5});
  }
}

TEST_CASE("a stop in the last step does not make a complete run a stopped one") {
  auto config = settings{};
  auto group = session_group{config};
  check_completed(group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      if (step.last())
        group.command(0, 1, stop_command{});
      ordinary_step(step, mine);
    });
  }),
                  config.steps);
  CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{12});
}

TEST_CASE("a checkpoint that is asked for is taken after the same step on all ranks, and the training goes on") {
  auto config = settings{};
  config.workers = 3;
  auto group = session_group{config};
  group.driver().on_part = [&](const checkpoint_part& part) {
    if (part.rank.value == 1 && part.step.value == 4)
      for (std::uint32_t rank : {0u, 2u})
        group.command(rank, 1, checkpoint_command{});
  };
  check_completed(group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      if (step.number() == 4 && ctx.rank() == 1)
        group.command(1, 1, checkpoint_command{});
      ordinary_step(step, mine);
    });
  }),
                  config.steps);
  CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{4, 12});
}

TEST_CASE("checkpoints are taken every so many steps and after the last, and hold what the run had then") {
  auto config = settings{};
  config.workers = 3;
  config.steps = 10;
  config.checkpoint_every = 3;
  auto group = session_group{config};
  auto result = train_on(group, config, 24);
  check_completed(result.finished, 10);
  CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{3, 6, 9, 10});
  auto definition = reference{8, 24, 1};
  auto expected = model{1};
  auto done = std::uint64_t{0};
  for (const auto& entry : value_or_throw(serialization::list_checkpoints(group.checkpoints()))) {
    auto stored = value_or_throw(serialization::checkpoint::open(entry.path));
    value_or_throw(stored.verify());
    expected = definition.train(expected, done + 1, entry.step.value);
    done = entry.step.value;
    vector weights{};
    value_or_throw(stored.read_tensor("weights", std::as_writable_bytes(std::span{weights})));
    CHECK(weights == expected.weights);
    CHECK(stored.content().world_size == 3);
    CHECK(stored.content().parts.size() == 3);
    CHECK(stored.content().generation == this_generation);
    CHECK(stored.content().metrics.at("loss") == definition.losses.back());
    if (done == 10)
      CHECK(value_or_throw(serialization::state_sha256(stored)) == result.finished[0].state_sha256);
  }
}

TEST_CASE("reports up to a checkpoint are with the driver before its part is") {
  auto config = settings{};
  config.workers = 2;
  config.checkpoint_every = 2;
  auto group = session_group{config};
  std::atomic<int> late{0};
  std::atomic<int> parts{0};
  group.driver().on_part = [&](const checkpoint_part& part) {
    ++parts;
    late += group.driver().reported(part.rank) >= part.step.value ? 0 : 1;
  };
  check_completed(train_on(group, config, 24).finished, config.steps);
  CHECK(parts == 12);
  CHECK(late == 0);
}

TEST_CASE("a worker that is asked to saves all of the state before its run ends, as it was after the last step") {
  settings config;
  config.workers = 2;
  config.steps = 4;
  auto undisturbed = session_group{config};
  const auto wanted = train_on(undisturbed, config, 24).finished[0].state_sha256;
  config.steps = 9;
  const auto fail_in_fifth = [&](session_group& group) {
    group.driver().saver = worker_id{10};
    // Rank 0 has applied step 4 when rank 1 throws.
    auto fifth_begins = std::latch{1};
    return group.run([&](train_context& ctx) {
      auto mine = model{ctx.seed()};
      track(ctx, mine);
      ctx.for_each_step(plan_with(24), [&](step& step) {
        if (step.number() == 5 && ctx.rank() == 1) {
          fifth_begins.wait();
          throw std::runtime_error{"out of range"};
        }
        if (step.number() == 5)
          fifth_begins.count_down();
        ordinary_step(step, mine);
      });
    });
  };
  auto saving = session_group{config};
  auto finished = fail_in_fifth(saving);
  CHECK(finished[0].reason.code == errc::aborted);
  CHECK(finished[0].step.value == 4);
  CHECK(finished[1].reason.code == errc::user_error);
  REQUIRE(saving.checkpoint_steps() == std::vector<std::uint64_t>{4});
  const auto saved = value_or_throw(serialization::checkpoint::open(saving.checkpoints() / "step-00000004"));
  CHECK(saved.content().world_size == 1);
  CHECK(value_or_throw(serialization::state_sha256(saved)) == wanted);

  auto full = session_group{config};
  full.driver().refuse_checkpoints = error{errc::io_error, "No space left on device"};
  finished = fail_in_fifth(full);
  CHECK(finished[0].reason.code == errc::io_error);
  CHECK(contains(finished[0].reason.message, "the state of step 4 could not be saved before the end of the run"));
}

TEST_CASE("a checkpoint that is given up does not end the training; one that the run's end cuts off does") {
  auto config = settings{};
  config.workers = 2;
  config.checkpoint_every = 3;
  auto full = session_group{config};
  full.driver().refuse_checkpoints = error{errc::io_error, "No space left on device"};
  check_completed(train_on(full, config, 24).finished, config.steps);
  CHECK(full.driver().outcomes_.size() == 4);

  auto ending = session_group{config};
  // Rank 0 waits for rank 1's part, which does not come.
  std::promise<void> waiting;
  ending.driver().on_part = [&](const checkpoint_part& part) {
    if (part.rank.value == 0)
      waiting.set_value();
  };
  const auto& finished = ending.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      ordinary_step(step, mine);
      if (step.number() == 3 && ctx.rank() == 1) {
        waiting.get_future().wait();
        throw std::runtime_error{"no part"};
      }
    });
  });
  CHECK(finished[0].reason.code == errc::aborted);
  CHECK(finished[0].step.value == 3);
}

TEST_CASE("training goes on while a checkpoint is written; what is due meanwhile is skipped, but not the last") {
  auto config = settings{};
  config.workers = 3;
  config.checkpoint_every = 2;
  config.checkpoints_in_flight = 1;
  auto undisturbed_group = session_group{settings{}};
  auto undisturbed = train_on(undisturbed_group, settings{}, 24);
  auto group = session_group{config};
  std::promise<void> late;
  auto gate = late.get_future().share();
  // Rank 1's part of the first comes when another two are due.
  group.driver().on_part = [&](const checkpoint_part& part) {
    if (part.rank.value == 1 && part.step.value == 2)
      gate.wait();
  };
  std::vector<model> models(config.workers, model{0});
  check_completed(group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      if (step.number() == 12 && ctx.rank() == 0)
        late.set_value();
      ordinary_step(step, mine);
    });
    models[ctx.rank()] = mine;
  }),
                  12);
  CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{2, 12});
  CHECK(models[0] == undisturbed.models[0]);
  // The checkpoint is the state of its step, not of the time at which it was written.
  auto stored =
      value_or_throw(serialization::checkpoint::open(group.checkpoints() / serialization::checkpoint_name(step_id{2})));
  value_or_throw(stored.verify());
  vector weights{};
  value_or_throw(stored.read_tensor("weights", std::as_writable_bytes(std::span{weights})));
  CHECK(weights == reference{8, 24, 1}.train(model{1}, 1, 2).weights);
  // Told once, by rank 0.
  std::vector<std::uint64_t> skipped;
  for (const auto& batch : group.driver().batches_)
    for (auto step : batch.skipped) {
      CHECK(batch.rank == rank_id{0});
      skipped.push_back(step.value);
    }
  CHECK(skipped == std::vector<std::uint64_t>{4, 6, 8, 10});
}

TEST_CASE("what may be the best is not skipped: training waits for the one that is being written") {
  auto config = settings{};
  config.workers = 3;
  config.checkpoint_every = 2;
  config.checkpoints_in_flight = 1;
  config.may_skip = false;
  auto group = session_group{config};
  std::promise<void> late;
  auto gate = late.get_future().share();
  // The first is under way when the barrier of step 4 asks.
  group.driver().on_part = [&](const checkpoint_part& part) {
    if (part.rank.value == 1 && part.step.value == 2)
      gate.wait();
  };
  check_completed(group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      ordinary_step(step, mine);
      if (step.number() == 4 && ctx.rank() == 0)
        late.set_value();
    });
  }),
                  12);
  CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{2, 4, 6, 8, 10, 12});
  for (const auto& batch : group.driver().batches_)
    CHECK(batch.skipped.empty());
}

TEST_CASE("with none in flight training waits for each checkpoint") {
  auto config = settings{};
  config.workers = 2;
  config.checkpoint_every = 2;
  config.checkpoints_in_flight = 0;
  auto group = session_group{config};
  std::atomic<std::uint64_t> begun{0};
  std::atomic<int> early{0};
  group.driver().on_part = [&](const checkpoint_part& part) { early += begun > part.step.value ? 1 : 0; };
  check_completed(group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      begun = step.number();
      ordinary_step(step, mine);
    });
  }),
                  12);
  CHECK(early == 0);
  CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{2, 4, 6, 8, 10, 12});
}

namespace {

/// What a checkpoint holds of files that no earlier one has, without its manifest.
std::uint64_t new_bytes(const fs::path& checkpoint, std::set<ino_t>& seen) {
  auto result = std::uint64_t{0};
  for (const auto& entry : fs::directory_iterator{checkpoint}) {
    struct stat info {};
    REQUIRE(::stat(entry.path().c_str(), &info) == 0);
    if (entry.path().filename() != serialization::manifest_file_name && seen.insert(info.st_ino).second)
      result += static_cast<std::uint64_t>(info.st_size);
  }
  return result;
}

} // namespace

TEST_CASE("a large tensor that is frozen is not written again, and every checkpoint loads without the others") {
  constexpr auto mebibyte = std::uint64_t{1} << 20;
  for (auto reuse : {true, false})
    for (auto workers : {1u, 2u}) {
      CAPTURE(reuse);
      CAPTURE(workers);
      auto config = settings{};
      config.workers = workers;
      config.checkpoint_every = 1;
      config.reuse_unchanged = reuse;
      auto group = session_group{config};
      auto table = std::vector<float>(9 * mebibyte / sizeof(float));
      std::iota(table.begin(), table.end(), 1.0f);
      check_completed(group.run([&](train_context& ctx) {
        auto mine = model{ctx.seed()};
        auto copy = table;
        track(ctx, mine);
        ctx.state().track("table", copy);
        ctx.for_each_step(plan_with(24), [&](step& step) { ordinary_step(step, mine); });
      }),
                      12);
      auto seen = std::set<ino_t>{};
      auto written = std::vector<std::uint64_t>{};
      for (const auto& each : value_or_throw(serialization::list_checkpoints(group.checkpoints()))) {
        written.push_back(new_bytes(each.path, seen) / mebibyte);
        value_or_throw(value_or_throw(serialization::checkpoint::open(each.path)).verify());
      }
      // Twice, and in every eighth.
      if (reuse)
        CHECK(written == std::vector<std::uint64_t>{9, 9, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0});
      else
        CHECK(written == std::vector<std::uint64_t>(12, 9));
      for (std::uint64_t step = 1; step <= 12; ++step)
        if (step != 7)
          value_or_throw(
              serialization::remove_checkpoint(group.checkpoints() / serialization::checkpoint_name(step_id{step})));
      auto stored = value_or_throw(
          serialization::checkpoint::open(group.checkpoints() / serialization::checkpoint_name(step_id{7})));
      auto loaded = std::vector<float>(table.size());
      value_or_throw(stored.read_tensor("table", std::as_writable_bytes(std::span{loaded})));
      CHECK(loaded == table);
      vector weights{};
      value_or_throw(stored.read_tensor("weights", std::as_writable_bytes(std::span{weights})));
      CHECK(weights == reference{8, 24, 1}.train(model{1}, 1, 7).weights);
    }
}

TEST_CASE("a run that goes on from a checkpoint on another number of workers ends with the same bits") {
  auto whole = settings{};
  auto whole_group = session_group{whole};
  auto undisturbed = train_on(whole_group, whole, 24);
  for (auto [before, after] : {std::pair{1u, 3u}, std::pair{3u, 1u}, std::pair{4u, 2u}}) {
    CAPTURE(before);
    CAPTURE(after);
    auto first = settings{};
    first.workers = before;
    first.steps = 5;
    auto first_group = session_group{first};
    check_completed(train_on(first_group, first, 24).finished, 5);

    auto second = settings{};
    second.workers = after;
    second.restore_from = first_group.checkpoints() / serialization::checkpoint_name(step_id{5});
    auto second_group = session_group{second};
    auto resumed = train_on(second_group, second, 24);
    check_completed(resumed.finished, 12);
    CHECK(resumed.finished[0].state_sha256 == undisturbed.finished[0].state_sha256);
    for (const auto& each : resumed.models)
      CHECK(each == undisturbed.models[0]);
    CHECK(second_group.checkpoint_steps() == std::vector<std::uint64_t>{12});
  }
}

TEST_CASE("a run whose state no pointer leads to ends, resumes and stores with the bits of one whose state lies here") {
  settings config;
  config.workers = 2;
  config.steps = 8;
  config.checkpoint_every = 3;
  config.check_every_step = true;
  session_group here{config};
  auto plain = train_on(here, config, 24);
  session_group there{config};
  auto hidden = train_hidden_on(there, config, 24);
  check_completed(hidden.finished, 8);
  CHECK(hidden.finished[0].state_sha256 == plain.finished[0].state_sha256);
  for (const auto& each : hidden.models)
    CHECK(each == plain.models[0]);
  REQUIRE(there.checkpoint_steps() == here.checkpoint_steps());
  for (auto step : there.checkpoint_steps()) {
    auto identity = [&](const session_group& of) {
      auto path = of.checkpoints() / serialization::checkpoint_name({step});
      return value_or_throw(serialization::state_sha256(value_or_throw(serialization::checkpoint::open(path))));
    };
    CHECK(identity(there) == identity(here));
  }
  // Each goes on from what the other has stored, on another number of workers.
  settings longer = config;
  longer.workers = 3;
  longer.steps = 12;
  longer.restore_from = here.checkpoints() / serialization::checkpoint_name({6});
  session_group third{longer};
  auto resumed = train_hidden_on(third, longer, 24);
  longer.restore_from = there.checkpoints() / serialization::checkpoint_name({8});
  session_group fourth{longer};
  auto other = train_on(fourth, longer, 24);
  check_completed(resumed.finished, 12);
  CHECK(resumed.finished[0].state_sha256 == other.finished[0].state_sha256);
}

TEST_CASE("replicas that differ in memory that no pointer leads to are found") {
  settings config;
  config.workers = 2;
  session_group group{config};
  auto finished = group.run([&](train_context& ctx) {
    hidden_model mine;
    mine.store(model{ctx.seed() + (ctx.rank() == 1 ? 1 : 0)});
    mine.track(ctx);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      compute(step, mine.load());
      std::ignore = step.all_reduce();
    });
  });
  CHECK(std::ranges::any_of(finished, [](const worker_finished& x) {
    return x.reason.code == errc::mismatch && contains(x.reason.message, "tensor 'weights' on rank 1");
  }));
}

TEST_CASE("a body that writes memory that no pointer leads to before all_reduce is found") {
  auto reason = reason_of([](train_context& ctx) {
    hidden_model mine;
    mine.store(model{ctx.seed()});
    mine.track(ctx);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      compute(step, mine.load());
      mine.store(model{7});
      std::ignore = step.all_reduce();
    });
  });
  CHECK(reason.code == errc::user_error);
  CHECK(contains(reason.message, "tensor 'weights'"));
}

using collectives::testing::fake_device;
using collectives::testing::on_host;

template <class Plan, class Body>
concept runs_steps = requires(train_context& ctx, const Plan& plan, const Body& body) {
  ctx.for_each_step(plan, body);
};
template <class Shard>
concept adds_metrics = requires(Shard& x) {
  x.add("loss", 1.0);
};
template <class Shard>
concept contributes = requires(Shard& x, std::span<const float> gradient) {
  x.contribute(gradient);
};
template <class Gradient>
concept reads_elements = requires(const Gradient& x) {
  x[0];
};

/// The same training with everything in memory of a GPU: the same arithmetic, as work on the context's stream.
outcome train_on_gpus(session_group& group, const settings& config, std::uint64_t batch) {
  outcome result;
  result.models.assign(config.workers, model{0});
  result.finished = group.run([&](train_context& ctx) {
    auto memory = value_or_throw(collectives::device_memory::make(ctx.gpu(), sizeof(model)));
    auto& mine = *new (memory.address()) model{ctx.seed()};
    ctx.track_on_gpu("weights", device_span{std::data(mine.weights), std::size(mine.weights)});
    ctx.track_on_gpu("momentum", device_span{std::data(mine.momentum), std::size(mine.momentum)});
    auto* stream = ctx.gpu_stream().handle();
    ctx.for_each_step(device_plan{plan_with(batch)}, [&](device_step& step) {
      for (auto& shard : step.shards()) {
        auto work = [&mine, samples = std::vector(shard.samples().begin(), shard.samples().end()),
                     random = shard.random(), gradient = on_host(shard.gradient()),
                     loss = shard.metric("loss").address()]() mutable {
          for (auto index : samples)
            *loss += mine.add_gradient(data()[index], static_cast<float>(random.uniform()), gradient);
        };
        value_or_throw(fake_device::run_on(stream, work));
      }
      auto gradient = on_host(step.all_reduce());
      value_or_throw(
          fake_device::run_on(stream, [&mine, gradient, number = step.number()] { mine.apply(gradient, number); }));
      step.report({{"loss", step.mean_loss()}});
    });
    value_or_throw(ctx.gpu()->synchronize());
    result.models[ctx.rank()] = mine;
  });
  return result;
}

TEST_CASE("a run on a GPU ends, stores and resumes with the bits of the same arithmetic on the CPU") {
  for (auto [workers, fast] : {std::pair{1u, false}, {1u, true}, {2u, false}, {3u, false}}) {
    CAPTURE(workers);
    CAPTURE(fast);
    settings config;
    config.workers = workers;
    config.steps = 8;
    config.checkpoint_every = 3;
    config.check_every_step = true;
    config.fast = fast;
    config.keep_ledger = true;
    session_group here{config};
    auto plain = train_on(here, config, 24);
    config.has_gpus = true;
    session_group there{config};
    auto on_gpu = train_on_gpus(there, config, 24);
    check_completed(on_gpu.finished, 8);
    if (!fast)
      CHECK(digests_of(there) == digests_of(here));
    for (const auto& each : on_gpu.models)
      CHECK(each == plain.models[0]);
    CHECK(on_gpu.finished[0].state_sha256 == plain.finished[0].state_sha256);
    REQUIRE(there.checkpoint_steps() == here.checkpoint_steps());
    config.steps = 12;
    config.restore_from = here.checkpoints() / serialization::checkpoint_name({6});
    session_group third{config};
    auto resumed = train_on_gpus(third, config, 24);
    config.restore_from = there.checkpoints() / serialization::checkpoint_name({6});
    config.has_gpus = false;
    session_group fourth{config};
    auto other = train_on(fourth, config, 24);
    CHECK(resumed.finished[0].state_sha256 == other.finished[0].state_sha256);
    CHECK(resumed.finished[0].step == step_id{12});
  }
}

TEST_CASE("a gradient on a GPU that is reduced in parts while it is computed has the bits of one that is not") {
  constexpr std::size_t elements = 5000;
  auto train_with = [&](bool on_gpu, std::uint64_t bucket_bytes) {
    settings config;
    config.steps = 3;
    config.has_gpus = on_gpu;
    session_group group{config};
    auto finished = group.run([&](train_context& ctx) {
      std::vector<float> host(elements);
      auto memory = on_gpu ? value_or_throw(collectives::device_memory::make(ctx.gpu(), elements * sizeof(float)))
                           : collectives::device_memory{};
      auto on_device = memory.bytes().as<float>();
      auto weights = on_gpu ? on_host(on_device) : std::span{host};
      std::ranges::fill(weights, 1.0f);
      on_gpu ? ctx.track_on_gpu("weights", on_device) : ctx.state().track("weights", weights);
      auto run = [&](std::function<void()> work) {
        on_gpu ? value_or_throw(fake_device::run_on(ctx.gpu_stream().handle(), std::move(work))) : work();
      };
      auto plan = plan_with(24);
      plan.gradient_elements = elements;
      plan.bucket_bytes = bucket_bytes;
      auto body = [&](auto& step) {
        for (auto& shard : step.shards()) {
          auto gradient = on_host(shard.gradient());
          for (auto first : {3000u, 700u, 0u}) {
            auto last = first == 3000 ? 5000u : first == 700 ? 3000u : 700u;
            run([=, v = shard.id().value] {
              for (auto i = first; i < last; ++i)
                gradient[i] += weights[i] / static_cast<float>(i + v + 1);
            });
            shard.mark_ready(first, last - first);
          }
        }
        auto mean = on_host(step.all_reduce());
        run([=] {
          for (std::size_t i = 0; i < elements; ++i)
            weights[i] -= mean[i];
        });
      };
      if (!on_gpu)
        return ctx.for_each_step(plan, [&](step& step) { body(step); });
      ctx.for_each_step(device_plan{plan}, [&](device_step& step) { body(step); });
      value_or_throw(ctx.gpu()->synchronize());
    });
    CHECK(finished[0].reason == error{});
    return finished[0].state_sha256;
  };
  const auto wanted = train_with(false, 1 << 20);
  CHECK(wanted.size() == 64);
  for (std::uint64_t bucket_bytes : {4096u, 8192u, 1u << 20})
    CHECK(train_with(true, bucket_bytes) == wanted);
}

TEST_CASE("what belongs to a plan on a GPU does not compile with one on the CPU, nor the other way round") {
  constexpr auto host_body = [](step&) {};
  constexpr auto device_body = [](device_step&) {};
  static_assert(runs_steps<step_plan, decltype(host_body)> && runs_steps<device_plan, decltype(device_body)>);
  static_assert(!runs_steps<step_plan, decltype(device_body)> && !runs_steps<device_plan, decltype(host_body)>);
  static_assert(!std::is_convertible_v<step_plan, device_plan> && !std::is_convertible_v<device_plan, step_plan>);
  static_assert(adds_metrics<shard> && !adds_metrics<device_shard>);
  static_assert(contributes<shard> && !contributes<device_shard>);
  static_assert(reads_elements<decltype(std::declval<step&>().all_reduce())>);
  static_assert(!reads_elements<decltype(std::declval<device_step&>().all_reduce())>);
}

TEST_CASE("a metric on a GPU has a name of the plan's, and a worker without a GPU has none") {
  settings config;
  config.has_gpus = true;
  auto wrong = reason_of(
      [](train_context& ctx) {
        ctx.for_each_step(device_plan{plan_with(24)}, [](device_step& step) {
          for (auto& shard : step.shards())
            std::ignore = shard.metric("gain");
        });
      },
      config);
  CHECK(contains(wrong.message, "gain"));
  auto none = reason_of([](train_context& ctx) { std::ignore = ctx.gpu(); });
  CHECK(none.code == errc::invalid_argument);
  CHECK(contains(none.message, "scaling.use_gpu"));
}

TEST_CASE("a new run from another's state begins with its tensors and values, at step 1") {
  auto first = settings{};
  auto first_group = session_group{first};
  auto lender = model{0};
  check_completed(first_group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.state().values()["note"] = 17;
    ctx.for_each_step(plan_with(24), [&](step& step) { ordinary_step(step, mine); });
    lender = mine;
  }),
                  12);
  auto second = settings{};
  second.steps = 2;
  second.restore_from = first_group.checkpoints() / serialization::checkpoint_name(step_id{12});
  second.restore_step = false;
  auto second_group = session_group{second};
  auto expected = reference{8, 24, 1}.train(lender, 1, 2);
  check_completed(second_group.run([&](train_context& ctx) {
    CHECK(ctx.restored_step() == 0);
    CHECK(ctx.state().values()["note"] == 17);
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    CHECK(mine == lender);
    ctx.for_each_step(plan_with(24), [&](step& step) { ordinary_step(step, mine); });
    CHECK(mine == expected);
  }),
                  2);
}

TEST_CASE("a run that is resumed where it ended has nothing to do") {
  auto config = settings{};
  auto first_group = session_group{config};
  auto first = train_on(first_group, config, 24);
  auto again = config;
  again.restore_from = first_group.checkpoints() / serialization::checkpoint_name(step_id{12});
  auto second_group = session_group{again};
  auto second = train_on(second_group, again, 24);
  check_completed(second.finished, 12);
  CHECK(second.finished[0].state_sha256 == first.finished[0].state_sha256);
  CHECK(second_group.checkpoint_steps().empty());
}

// -- a run that finishes itself ---------------------------------------------------------------------------------------

TEST_CASE("a run is finished by a decision of its own in the same step, with the same bits, on any number of workers") {
  std::set<std::string> states;
  const auto loss_of_fifth = loss_of_step(5);
  for (auto workers : {1u, 2u, 4u}) {
    auto config = settings{};
    config.workers = workers;
    config.checkpoint_every = 2;
    const auto train = [&](train_context& ctx) {
      auto mine = model{ctx.seed()};
      track(ctx, mine);
      ctx.for_each_step(plan_with(24), [&](step& step) {
        ordinary_step(step, mine);
        if (step.mean_loss() == loss_of_fifth)
          step.finish();
      });
      ctx.for_each_step(plan_with(24), [&](step&) { throw std::logic_error{"a loop after the run"}; });
    };
    auto group = session_group{config};
    for (const auto& each : group.run(train)) {
      CHECK(each.reason == error{});
      CHECK(each.step.value == 5);
      CHECK_FALSE(each.stopped);
      states.insert(each.state_sha256);
    }
    CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{2, 4, 5});
    const auto last = group.checkpoints() / serialization::checkpoint_name(step_id{5});
    CHECK(value_or_throw(serialization::checkpoint::open(last)).content().finishes_run);
    CHECK_FALSE(
        value_or_throw(serialization::checkpoint::open(group.checkpoints() / "step-00000004")).content().finishes_run);
    // There is nothing left to do for a run that goes on from there.
    config.restore_from = last;
    config.is_finished = true;
    auto again = session_group{config};
    for (const auto& each : again.run(train)) {
      CHECK(each.reason == error{});
      CHECK(each.step.value == 5);
      states.insert(each.state_sha256);
    }
    CHECK(again.checkpoint_steps().empty());
  }
  CHECK(states.size() == 1);
}

TEST_CASE("a decision to finish that differs between ranks ends the run, and names them") {
  for (auto transport : {transport_kind::shm, transport_kind::tcp}) {
    auto config = settings{};
    config.workers = 3;
    config.transport = transport;
    auto group = session_group{config};
    const auto& finished = group.run([](train_context& ctx) {
      auto mine = model{ctx.seed()};
      track(ctx, mine);
      ctx.for_each_step(plan_with(24), [&](step& step) {
        ordinary_step(step, mine);
        if (step.number() == 3 && ctx.rank() != 1)
          step.finish();
      });
    });
    auto named = 0;
    for (const auto& each : finished) {
      CAPTURE(each.reason.message);
      CHECK((each.reason.code == errc::mismatch || each.reason.code == errc::aborted));
      if (each.reason.code == errc::mismatch && contains(each.reason.message, "step.finish() was called") &&
          contains(each.reason.message, "step 3") && contains(each.reason.message, "rank 1"))
        ++named;
    }
    CHECK(named > 0);
  }
}

TEST_CASE("a run can be finished only after all_reduce") {
  const auto reason = reason_of([](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      step.finish();
      ordinary_step(step, mine);
    });
  });
  CHECK(reason.code == errc::user_error);
  CHECK(contains(reason.message, "step.finish() before step.all_reduce() in step 1"));
}

// -- metrics that are not finite --------------------------------------------------------------------------------------

TEST_CASE("a loss that is not finite is told once, with step, shard and rank, and can end the run before the step") {
  for (auto ends : {false, true}) {
    auto config = settings{};
    config.workers = 2;
    config.end_on_not_finite = ends;
    auto group = session_group{config};
    const auto& finished = group.run([](train_context& ctx) {
      auto mine = model{ctx.seed()};
      track(ctx, mine);
      ctx.for_each_step(plan_with(24), [&](step& step) {
        for (auto& shard : step.shards())
          shard.add("loss", step.number() >= 4 && step.number() < 8 && shard.id() == shard_id{6}
                                ? std::numeric_limits<double>::infinity()
                                : 1.0);
        mine.apply(step.all_reduce(), step.number());
      });
    });
    for (const auto& each : finished) {
      CHECK(each.step.value == (ends ? 3 : 12));
      CHECK((each.reason.code == (ends ? errc::invalid_argument : errc::none) ||
             (ends && each.reason.code == errc::aborted)));
    }
    std::vector<not_finite_row> told;
    for (const auto& batch : group.driver().batches_)
      for (const auto& row : batch.not_finite) {
        CHECK(batch.rank == rank_id{1});
        told.push_back(row);
      }
    CHECK(told ==
          std::vector<not_finite_row>{{step_id{4}, shard_id{6}, "loss", std::numeric_limits<double>::infinity()}});
  }
}

TEST_CASE("a checkpoint of tensors that nobody tracks is refused, and so is one that is not there") {
  auto config = settings{};
  auto first_group = session_group{config};
  train_on(first_group, config, 24);
  config.restore_from = first_group.checkpoints() / serialization::checkpoint_name(step_id{12});
  auto untracked = reason_of(
      [](train_context& ctx) {
        auto mine = model{ctx.seed()};
        ctx.state().track("weights", std::span<float>{mine.weights});
        ctx.for_each_step(plan_with(24), [&](step& step) { ordinary_step(step, mine); });
      },
      config);
  CHECK(untracked.code == errc::mismatch);
  CHECK(contains(untracked.message, "'momentum'"));
  CHECK(contains(untracked.message, config.restore_from.string()));

  config.restore_from = first_group.checkpoints() / "step-99999999";
  auto absent = reason_of([](train_context&) { throw std::logic_error{"entered"}; }, config);
  CHECK(absent.code == errc::not_found);
  CHECK(contains(absent.message, "step-99999999"));
}

// -- bodies that break the rules --------------------------------------------------------------------------------------

TEST_CASE("a body that writes tracked state before all_reduce is found in the first step") {
  auto wrong = reason_of_body([](step& step, model& mine) {
    compute(step, mine);
    mine.momentum[2] += 1;
    mine.apply(step.all_reduce(), step.number());
  });
  CHECK(wrong.code == errc::user_error);
  CHECK(contains(wrong.message, "step 1"));
  CHECK(contains(wrong.message, "tensor 'momentum'"));
  CHECK_FALSE(contains(wrong.message, "'weights'"));
  CHECK(contains(wrong.message, "before all_reduce"));
}

TEST_CASE("a body that writes tracked values before all_reduce is found, too") {
  auto wrong = reason_of([](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      ctx.state().values()["seen"] = step.number();
      ordinary_step(step, mine);
    });
  });
  CHECK(wrong.code == errc::user_error);
  CHECK(contains(wrong.message, "values()"));
}

TEST_CASE("collectives and reports of a custom loop are refused in the body of a step, and not outside") {
  const auto reason = [](const std::function<void(train_context&)>& call) {
    return reason_of([&](train_context& ctx) {
      auto mine = model{ctx.seed()};
      track(ctx, mine);
      call(ctx);
      ctx.for_each_step(plan_with(24), [&](step& step) {
        ordinary_step(step, mine);
        call(ctx);
      });
    });
  };
  const auto sum = reason([](train_context& ctx) {
    std::vector<float> value{1};
    ctx.all_reduce(std::span{value});
  });
  CHECK(sum.code == errc::user_error);
  CHECK(contains(sum.message, "in the body of step 1: its result would depend on the number of workers"));
  CHECK(contains(reason([](train_context& ctx) { ctx.barrier(); }).message, "in the body of step 1"));
}

TEST_CASE("a body that writes tracked state in a later step is found when every step is checked") {
  auto body = [](step& step, model& mine) {
    compute(step, mine);
    // Between two that are checked without being asked to.
    if (step.number() == 3)
      mine.weights[0] += 1;
    mine.apply(step.all_reduce(), step.number());
  };
  CHECK(reason_of_body(body) == error{});
  auto config = settings{};
  config.check_every_step = true;
  auto wrong = reason_of_body(body, config);
  CHECK(wrong.code == errc::user_error);
  CHECK(contains(wrong.message, "rank 0 after step 2"));
  CHECK(contains(wrong.message, "step 3"));
  CHECK(contains(wrong.message, "tensor 'weights'"));
  CHECK(reason_of_body(ordinary_step, config) == error{});
}

TEST_CASE("bodies that do not go shards, all_reduce, apply are told what they do wrong") {
  auto expect = [](const std::string& text, const std::function<void(step&, model&)>& body) {
    CAPTURE(text);
    auto wrong = reason_of_body(body);
    CAPTURE(wrong.message);
    CHECK(wrong.code == errc::user_error);
    CHECK(contains(wrong.message, "step 1"));
    CHECK(contains(wrong.message, text));
  };
  expect("without calling step.all_reduce()", [](step& step, model& mine) { compute(step, mine); });
  expect("called twice", [](step& step, model& mine) {
    compute(step, mine);
    step.all_reduce();
    step.all_reduce();
  });
  expect("computed 0 of its 8 shards", [](step& step, model&) { step.all_reduce(); });
  expect("computed 3 of its 8 shards", [](step& step, model&) {
    for (auto& shard : step.shards())
      if (shard.id().value == 2)
        break;
    step.all_reduce();
  });
  expect("takes shard 1 when shard 0 is due", [](step& step, model&) {
    auto i = step.shards().begin();
    ++i;
    static_cast<void>((*i).id());
  });
  expect("takes shard 0 when shard 8 is due", [](step& step, model& mine) {
    compute(step, mine);
    compute(step, mine);
  });
  expect("computes a shard after all_reduce", [](step& step, model& mine) {
    compute(step, mine);
    step.all_reduce();
    compute(step, mine);
  });
}

TEST_CASE("metrics and gradients that the plan does not have are refused") {
  auto before = reason_of_body([](step& step, model& mine) {
    compute(step, mine);
    static_cast<void>(step.mean_loss());
  });
  CHECK(before.code == errc::user_error);
  CHECK(contains(before.message, "before step.all_reduce()"));
  auto metric = reason_of_body([](step& step, model&) {
    for (auto& shard : step.shards())
      shard.add("accuracy", 1);
  });
  CHECK(metric.code == errc::invalid_argument);
  CHECK(contains(metric.message, "'accuracy'"));
  auto length = reason_of_body([](step& step, model&) {
    auto wrong = std::vector<float>(dimensions + 1);
    for (auto& shard : step.shards())
      shard.contribute(wrong);
  });
  CHECK(length.code == errc::invalid_argument);
  CHECK(contains(length.message, "8 elements to a gradient of 7"));
}

TEST_CASE("a plan that says nothing to do is refused") {
  auto expect = [](const std::string& text, const std::function<void(step_plan&)>& change, std::uint64_t steps = 12) {
    CAPTURE(text);
    auto config = settings{};
    config.steps = steps;
    auto wrong = reason_of(
        [&](train_context& ctx) {
          auto plan = plan_with(24);
          change(plan);
          ctx.for_each_step(plan, [](step&) { throw std::logic_error{"entered"}; });
        },
        config);
    CHECK(wrong.code == errc::invalid_argument);
    CHECK(contains(wrong.message, text));
  };
  expect("data set is empty", [](step_plan& plan) { plan.data.samples = 0; });
  expect("batch_samples is 0", [](step_plan& plan) { plan.batch_samples = 0; });
  expect(
      "how many steps", [](step_plan&) {}, 0);
  expect("2^42", [](step_plan& plan) { plan.steps = std::uint64_t{1} << 40; });
}

TEST_CASE("the plan's own number of steps goes before the run's") {
  auto group = session_group{settings{}};
  check_completed(group.run([](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    auto plan = plan_with(24);
    plan.steps = 3;
    ctx.for_each_step(plan, [&](step& step) { ordinary_step(step, mine); });
  }),
                  3);
}

TEST_CASE("workers with different plans do not begin") {
  auto config = settings{};
  config.workers = 2;
  auto group = session_group{config};
  for (const auto& each : group.run([](train_context& ctx) {
         auto plan = plan_with(24);
         plan.data.fingerprint += std::to_string(ctx.rank());
         ctx.for_each_step(plan, [](step&) { throw std::logic_error{"entered"}; });
       }))
    CHECK(each.reason.code == errc::mismatch);
  CHECK(group.driver().plans_.at(worker_id{11}).data_fingerprint == "50 samples, fixed1");
}

// -- failures ---------------------------------------------------------------------------------------------------------

TEST_CASE("replicas that differ are found, with tensor and rank") {
  auto config = settings{};
  config.workers = 3;
  auto check = [&](const std::string& what,
                   const std::function<void(std::uint32_t rank, std::uint64_t step, model&)>& harm) {
    auto group = session_group{config};
    const auto& finished = group.run([&](train_context& ctx) {
      auto mine = model{ctx.seed()};
      harm(ctx.rank(), 0, mine);
      track(ctx, mine);
      ctx.for_each_step(plan_with(24), [&](step& step) {
        ordinary_step(step, mine);
        harm(ctx.rank(), step.number(), mine);
      });
    });
    auto found = std::ranges::find(finished, errc::mismatch, [](const worker_finished& x) { return x.reason.code; });
    REQUIRE(found != finished.end());
    CAPTURE(found->reason.message);
    CHECK(contains(found->reason.message, what));
    CHECK(contains(found->reason.message, "differs from rank 0's"));
    for (const auto& each : finished) {
      CHECK(each.reason.code != errc::none);
      CHECK(each.step.value < config.steps);
      CHECK(each.state_sha256.empty());
    }
  };
  check(": tensor 'weights' on rank 1.",
        [](std::uint32_t rank, std::uint64_t, model& mine) { mine.weights[3] += static_cast<float>(rank % 2); });
  check("tensor 'momentum' on rank 1, 2", [](std::uint32_t rank, std::uint64_t step, model& mine) {
    if (step == 2 && rank > 0)
      mine.momentum[6] += static_cast<float>(rank);
  });
  // The last bit of the last element is enough.
  check("on rank 2", [](std::uint32_t rank, std::uint64_t step, model& mine) {
    if (step == 3 && rank == 2)
      mine.momentum[6] = std::nextafter(mine.momentum[6], 100.0f);
  });
}

// -- shards that are computed twice -----------------------------------------------------------------------------------

TEST_CASE("a run that computes shards a second time ends with the same bits") {
  auto config = settings{};
  config.steps = 10;
  const auto whole = train_in_parts(config, 1 << 20, completion::never);
  for (auto workers : {1u, 2u, 3u})
    for (auto every : {std::uint64_t{1}, std::uint64_t{3}})
      for (auto how : {completion::never, completion::backward}) {
        INFO("workers ", workers, ", every ", every);
        config.workers = workers;
        config.verify_determinism = every;
        CHECK(train_in_parts(config, 4096, how) == whole);
      }
}

TEST_CASE("the shard that is computed twice is another rank's, with the same samples, and is one more in its list") {
  auto config = settings{};
  config.workers = 3;
  config.verify_determinism = 2;
  auto group = session_group{config};
  std::mutex mutex;
  // By step and shard: who, and of what.
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<std::pair<std::uint32_t, std::uint64_t>>> computed;
  check_completed(group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      std::uint32_t shards = 0;
      for (auto& shard : step.shards()) {
        ++shards;
        auto samples = std::accumulate(shard.samples().begin(), shard.samples().end(), std::uint64_t{0});
        auto lock = std::lock_guard{mutex};
        computed[{step.number(), shard.id().value}].emplace_back(ctx.rank(), samples);
      }
      CHECK(shards == step.shards().size());
      mine.apply(step.all_reduce(), step.number());
    });
  }),
                  config.steps);
  std::uint64_t twice = 0;
  for (const auto& [where, by] : computed) {
    CHECK(by.size() <= 2);
    if (by.size() < 2)
      continue;
    ++twice;
    CHECK(where.first % 2 == 0);
    CHECK(where.second == where.first / 2 - 1);
    CHECK(by[0].first != by[1].first);
    CHECK(by[0].second == by[1].second);
  }
  CHECK(computed.size() == config.steps * config.shards);
  CHECK(twice == config.steps / 2);
}

TEST_CASE("a gradient that depends on the rank is found, with tensor, ranks, shard and step") {
  auto config = settings{};
  config.workers = 3;
  auto body = [](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.name_gradient({{"inner", 0, 5}, {"outer", 5, 2}});
    ctx.for_each_step(plan_with(24), [&](step& step) {
      for (auto& shard : step.shards()) {
        for (auto index : shard.samples())
          shard.add("loss", mine.add_gradient(data()[index], 1, shard.gradient()));
        // Nobody sees it in the sum.
        if (ctx.rank() == 2)
          shard.gradient()[6] += 0.25f;
      }
      mine.apply(step.all_reduce(), step.number());
    });
  };
  {
    auto group = session_group{config};
    check_completed(group.run(body), config.steps);
  }
  // Shards 0 and 1 are rank 0's and computed again by rank 1; the first that rank 2 computes again is shard 2.
  config.verify_determinism = 2;
  auto group = session_group{config};
  for (const auto& each : group.run(body)) {
    CAPTURE(each.reason.message);
    // The first to say so may cut off the others.
    CHECK((each.reason.code == errc::mismatch || each.reason.code == errc::aborted));
    CHECK(contains(each.reason.message, "step 6, shard 2: rank 1, whose it is, and rank 2 have computed it"));
    CHECK(contains(each.reason.message, "differ in the gradient of 'outer' (1 of 2 numbers, by 0.25 at most). "));
    CHECK(each.step.value == 5);
  }
}

TEST_CASE("a lonely worker that computes differently each time is found, also in its metrics alone") {
  auto config = settings{};
  config.verify_determinism = 1;
  auto calls = 0;
  auto wrong = reason_of_body(
      [&](step& step, model& mine) {
        for (auto& shard : step.shards())
          shard.add("loss", ++calls > 20 ? calls : 1);
        mine.apply(step.all_reduce(), step.number());
      },
      config);
  CHECK(wrong.code == errc::mismatch);
  CHECK(contains(wrong.message, "step 3, shard 2: rank 0 has computed it twice"));
  CHECK(contains(wrong.message, "differ in the sums of the metrics (1 of 1 numbers, by 6 at most)"));
  CHECK(reason_of_body(ordinary_step, config) == error{});
}

TEST_CASE("a body that leaves out the shard that is to be computed again is told so") {
  auto config = settings{};
  config.verify_determinism = 1;
  auto wrong = reason_of_body(
      [](step& step, model& mine) {
        auto left = 8;
        for (auto& shard : step.shards()) {
          static_cast<void>(shard.id());
          if (--left == 0)
            break;
        }
        mine.apply(step.all_reduce(), step.number());
      },
      config);
  CHECK(wrong.code == errc::user_error);
  CHECK(contains(wrong.message, "did not compute shard 0 again before all_reduce"));
}

TEST_CASE("replicas whose values differ are found") {
  auto config = settings{};
  config.workers = 2;
  auto group = session_group{config};
  const auto& finished = group.run([](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.state().values()["rank"] = ctx.rank();
    ctx.for_each_step(plan_with(24), [&](step& step) { ordinary_step(step, mine); });
  });
  auto found = std::ranges::find(finished, errc::mismatch, [](const worker_finished& x) { return x.reason.code; });
  REQUIRE(found != finished.end());
  CHECK(contains(found->reason.message, "step 1"));
  CHECK(contains(found->reason.message, "values() on rank 1"));
}

TEST_CASE("an exception's text, rank and step come out, and the others end as cut off") {
  auto config = settings{};
  config.workers = 3;
  auto group = session_group{config};
  auto in_body = std::latch{config.workers};
  const auto& finished = group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      // All have applied step 3 once they are in the body of step 4.
      if (step.number() == 4)
        in_body.arrive_and_wait();
      if (step.number() == 4 && ctx.rank() == 2)
        throw std::runtime_error{"cannot read line 17"};
      ordinary_step(step, mine);
    });
  });
  CHECK(finished[2].reason == error{errc::user_error, "rank 2 after step 3: cannot read line 17"});
  for (const auto& each : finished) {
    CHECK(each.step.value == 3);
    CHECK(each.state_sha256.empty());
    CHECK_FALSE(each.stopped);
  }
  for (auto rank : {0u, 1u}) {
    CHECK(finished[rank].reason.code == errc::aborted);
    CHECK(contains(finished[rank].reason.message, "rank " + std::to_string(rank) + " after step 3: "));
  }
}

TEST_CASE("what is thrown outside of steps, and is no exception at all, is told as well") {
  auto before = reason_of([](train_context&) { throw std::runtime_error{"no data"}; });
  CHECK(before == error{errc::user_error, "rank 0 before the first step: no data"});
  auto odd = reason_of([](train_context&) { throw 17; });
  CHECK(odd.code == errc::user_error);
  CHECK(contains(odd.message, "no std::exception"));
  auto own = reason_of([](train_context&) { throw exception{errc::not_found, "no file"}; });
  CHECK(own == error{errc::not_found, "rank 0 before the first step: no file"});
}

TEST_CASE("an exception before the first step ends the others, who wait for the plan") {
  auto config = settings{};
  config.workers = 3;
  auto group = session_group{config};
  const auto& finished = group.run([](train_context& ctx) {
    // All have formed the group.
    ctx.barrier();
    if (ctx.rank() == 1)
      throw std::runtime_error{"no data"};
    ctx.for_each_step(plan_with(24), [](step&) { throw std::logic_error{"entered"}; });
  });
  CHECK(finished[0].reason.code == errc::aborted);
  CHECK(finished[1].reason.code == errc::user_error);
  CHECK(finished[2].reason.code == errc::aborted);
}

TEST_CASE("an abort ends those who wait for another rank") {
  auto config = settings{};
  config.workers = 3;
  auto group = session_group{config};
  // All have applied step 2 once they are in the body of step 3.
  auto in_body = std::latch{config.workers};
  std::promise<void> gate;
  auto opened = gate.get_future();
  const auto& finished = group.run(
      [&](train_context& ctx) {
        auto mine = model{ctx.seed()};
        track(ctx, mine);
        ctx.for_each_step(plan_with(24), [&](step& step) {
          if (step.number() == 3)
            in_body.count_down();
          if (step.number() == 3 && ctx.rank() == 0)
            opened.wait();
          ordinary_step(step, mine);
        });
      },
      [&] {
        in_body.wait();
        group.abort({errc::stale_generation, "an older one"}, generation_id{2});
        group.abort({errc::aborted, "the run is ending: a node is lost"});
        // Only they: rank 0 is still computing.
        group.wait_for_finished(2);
        gate.set_value();
      });
  for (const auto& each : finished) {
    CHECK(each.reason.code == errc::aborted);
    CHECK(each.step.value == 2);
  }
  // The others may have seen its connections go before they heard why.
  CHECK(contains(finished[0].reason.message, "a node is lost"));
}

TEST_CASE("an abort before the training begins keeps it from beginning") {
  for (std::uint32_t workers : {1u, 2u}) {
    auto config = settings{};
    config.workers = workers;
    auto group = session_group{config};
    group.abort({errc::aborted, "the run is ending"});
    for (const auto& each : group.run([](train_context&) { throw std::logic_error{"entered"}; }))
      CHECK(each.reason.code == errc::aborted);
    CHECK(group.driver().exchanges_ == 0);
  }
}

TEST_CASE("an abort of a lonely worker ends it at its next step") {
  auto config = settings{};
  auto group = session_group{config};
  const auto& finished = group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      if (step.number() == 6)
        group.abort({errc::aborted, "the run is ending: so it is"});
      ordinary_step(step, mine);
    });
  });
  CHECK(finished[0].reason.code == errc::aborted);
  CHECK(contains(finished[0].reason.message, "so it is"));
  CHECK(finished[0].step.value == 5);
}

TEST_CASE("aborts at any moment end all ranks") {
  auto config = settings{};
  config.workers = 3;
  config.steps = 100'000;
  for (std::uint64_t step_of_abort = 1; step_of_abort <= 8; ++step_of_abort) {
    auto group = session_group{config};
    std::promise<void> reached;
    const auto& finished = group.run(
        [&](train_context& ctx) {
          auto mine = model{ctx.seed()};
          track(ctx, mine);
          ctx.for_each_step(plan_with(24), [&](step& step) {
            if (step.number() == step_of_abort && ctx.rank() == step_of_abort % 3)
              reached.set_value();
            ordinary_step(step, mine);
          });
        },
        [&] {
          // From here on the workers run: the abort falls somewhere into a step.
          reached.get_future().wait();
          group.abort({errc::aborted, "the run is ending"});
        });
    auto applied = [](const worker_finished& x) { return x.step.value; };
    auto [least, most] = std::ranges::minmax(finished, {}, applied);
    CHECK(most.step.value - least.step.value <= 1);
    for (const auto& each : finished)
      CHECK(each.reason.code == errc::aborted);
  }
}

// -- a custom loop --------------------------------------------------------------------------------------------------

TEST_CASE("code with a loop of its own has the rank collectives") {
  constexpr std::uint32_t workers = 3;
  auto config = settings{};
  config.workers = workers;
  auto group = session_group{config};
  struct seen {
    std::vector<float> sum{1, 2, 3};
    std::vector<double> mean{0};
    std::vector<std::int32_t> least{0};
    std::vector<std::int64_t> most{0};
    std::vector<float> product{0};
    std::vector<std::int32_t> all;
    std::vector<float> part;
    std::vector<std::int32_t> dealt;
    std::vector<float> from_two;
  };
  std::vector<seen> ranks(workers);
  for (const auto& each : group.run([&](train_context& ctx) {
         auto& mine = ranks[ctx.rank()];
         auto rank = static_cast<std::int32_t>(ctx.rank());
         for (auto& x : mine.sum)
           x += static_cast<float>(10 * rank);
         ctx.all_reduce(std::span{mine.sum});
         mine.mean[0] = rank;
         ctx.all_reduce(std::span{mine.mean}, reduction::mean);
         mine.least[0] = 7 - rank;
         ctx.all_reduce(std::span{mine.least}, reduction::min);
         mine.most[0] = 7 - rank;
         ctx.all_reduce(std::span{mine.most}, reduction::max);
         mine.product[0] = static_cast<float>(rank + 2);
         ctx.all_reduce(std::span{mine.product}, reduction::product);
         std::vector<std::int32_t> own{rank, rank * 100};
         mine.all.resize(std::size_t{2} * workers);
         ctx.all_gather(std::span<const std::int32_t>{own}, std::span{mine.all});
         std::vector<float> blocks{1, 2, 3};
         mine.part.resize(1);
         ctx.reduce_scatter(std::span<const float>{blocks}, std::span{mine.part});
         std::vector<std::int32_t> dealt{10 * rank, 10 * rank + 1, 10 * rank + 2};
         mine.dealt.resize(workers);
         ctx.all_to_all(std::span<const std::int32_t>{dealt}, std::span{mine.dealt});
         mine.from_two.assign(2, static_cast<float>(rank));
         ctx.broadcast(std::span{mine.from_two}, 2);
         ctx.barrier();
       }))
    CHECK(each.reason == error{});
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    const auto& mine = ranks[rank];
    CHECK(mine.sum == std::vector<float>{33, 36, 39});
    CHECK(mine.mean == std::vector<double>{1});
    CHECK(mine.least == std::vector<std::int32_t>{5});
    CHECK(mine.most == std::vector<std::int64_t>{7});
    CHECK(mine.product == std::vector<float>{24});
    CHECK(mine.all == std::vector<std::int32_t>{0, 0, 1, 100, 2, 200});
    CHECK(mine.part == std::vector<float>{3.0f * static_cast<float>(rank + 1)});
    auto own = static_cast<std::int32_t>(rank);
    CHECK(mine.dealt == std::vector<std::int32_t>{own, 10 + own, 20 + own});
    CHECK(mine.from_two == std::vector<float>{2, 2});
  }
}

TEST_CASE("reports of a custom loop count as steps and take checkpoints when asked to") {
  auto config = settings{};
  config.workers = 2;
  auto group = session_group{config};
  const auto& finished = group.run([](train_context& ctx) {
    std::vector<double> total{0};
    ctx.state().track("total", total);
    for (auto i = 1; i <= 4; ++i) {
      std::vector<double> sum{static_cast<double>(i)};
      ctx.all_reduce(std::span{sum});
      total[0] += sum[0];
      ctx.report({{"total", total[0]}, {"rank", ctx.rank()}}, i % 2 == 0 ? save_checkpoint::yes : save_checkpoint::no);
    }
  });
  check_completed(finished, 4, 0);
  CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{2, 4});
  auto stored =
      value_or_throw(serialization::checkpoint::open(group.checkpoints() / serialization::checkpoint_name(step_id{4})));
  CHECK(stored.content().metrics.at("total") == 20);
  std::map<std::uint32_t, std::vector<double>> totals;
  for (const auto& batch : group.driver().batches_)
    for (const auto& row : batch.rows) {
      CHECK(row.values.at("rank") == batch.rank.value);
      CHECK(row.step.value == totals[batch.rank.value].size() + 1);
      totals[batch.rank.value].push_back(row.values.at("total"));
    }
  for (auto rank : {0u, 1u})
    CHECK(totals[rank] == std::vector<double>{2, 6, 12, 20});

  config.restore_from = group.checkpoints() / serialization::checkpoint_name(step_id{4});
  auto again = session_group{config};
  check_completed(again.run([](train_context& ctx) {
    std::vector<double> total{0};
    ctx.state().track("total", total);
    if (total[0] != 20 || ctx.restored_step() != 4)
      throw std::logic_error{"not restored"};
    ctx.report({}, save_checkpoint::yes);
  }),
                  5, 0);
  CHECK(again.checkpoint_steps() == std::vector<std::uint64_t>{5});
}

TEST_CASE("a loop of a custom loop that ends on a stop is a stopped run") {
  auto config = settings{};
  config.workers = 2;
  auto group = session_group{config};
  const auto& finished = group.run([&](train_context& ctx) {
    std::vector<double> total{0};
    ctx.state().track("total", total);
    for (auto i = 1; i <= 100; ++i) {
      if (i == 3 && ctx.rank() == 1)
        group.command(1, 1, stop_command{});
      std::vector<std::int32_t> stop{ctx.stop_requested() ? 1 : 0};
      ctx.all_reduce(std::span{stop}, reduction::max);
      if (stop[0] == 1) {
        ctx.report({}, save_checkpoint::yes);
        return;
      }
      total[0] += 1;
      ctx.report({{"total", total[0]}});
    }
  });
  for (const auto& each : finished) {
    CHECK(each.reason == error{});
    CHECK(each.step.value == 3);
  }
  CHECK(finished[1].stopped);
  CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{3});
}

TEST_CASE("ranks that report a checkpoint at different steps are told so") {
  auto config = settings{};
  config.workers = 2;
  auto group = session_group{config};
  for (const auto& each : group.run([](train_context& ctx) {
         std::vector<double> total{0};
         ctx.state().track("total", total);
         if (ctx.rank() == 1)
           ctx.report({{"extra", 1}});
         ctx.report({}, save_checkpoint::yes);
       })) {
    auto known = each.reason.code == errc::mismatch || each.reason.code == errc::aborted;
    CHECK(known);
    if (each.reason.code == errc::mismatch)
      CHECK(contains(each.reason.message, "different steps, 1 and 2"));
  }
  CHECK(group.checkpoint_steps().empty());
}

TEST_CASE("what is reported last, and before an exception, is with the driver when the worker has finished") {
  for (auto throws : {false, true}) {
    auto group = session_group{settings{}};
    group.run([&](train_context& ctx) {
      for (auto i = 0; i < 100; ++i)
        ctx.report({{"i", i}});
      if (throws)
        throw std::runtime_error{"the end"};
    });
    CHECK(group.driver().reported(rank_id{0}) == 100);
    CHECK(group.driver().batches_.back().applied.value == 100);
  }
}

TEST_CASE("a lost peer ends a collective of a custom loop") {
  auto config = settings{};
  config.workers = 3;
  auto group = session_group{config};
  const auto& finished = group.run([](train_context& ctx) {
    ctx.barrier();
    if (ctx.rank() == 1)
      throw std::runtime_error{"gone"};
    ctx.barrier();
  });
  CHECK(finished[1].reason.code == errc::user_error);
  CHECK(finished[0].reason.code == errc::aborted);
  CHECK(finished[2].reason.code == errc::aborted);
}

} // namespace

} // namespace troupe

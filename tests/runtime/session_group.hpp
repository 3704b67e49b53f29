#pragma once

#include "worker/session.hpp"

#include <troupe/actors/decisions/checkpoint_attempts.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>

#include <doctest/doctest.h>
#include <fake_device.hpp>
#include <scratch_directory.hpp>

#include <condition_variable>
#include <fcntl.h>
#include <latch>
#include <map>
#include <thread>

namespace troupe::testing {

namespace fs = std::filesystem;

inline bool contains(const std::string& text, const std::string& part) {
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
  exchange_descriptors(const runtime::descriptor_offer& place, std::span<const int> mine) {
    auto lock = std::unique_lock{mutex_};
    ++exchanges_;
    for (auto fd : mine)
      descriptors_[place.local_rank].emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    changed_.notify_all();
    changed_.wait(lock, [this] { return aborted_ || descriptors_.size() == workers_; });
    if (descriptors_.size() < workers_)
      return fail(errc::aborted, "the run is ending");
    std::vector<std::vector<collectives::unique_fd>> result(workers_);
    for (const auto& [rank, theirs] : descriptors_)
      for (const auto& each : theirs)
        if (rank != place.local_rank)
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
  exchange_descriptors(const runtime::descriptor_offer& place, std::span<const int> mine,
                       const std::stop_token&) override {
    return driver_.exchange_descriptors(place, mine);
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

/// The digests of all pieces by step, each from two ranks where there are two; the state's is the last.
inline std::map<std::uint64_t, std::map<std::uint32_t, std::uint64_t>> digests_of(session_group& group) {
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

} // namespace troupe::testing

#include <troupe/trainer.hpp>

#include "driver/checkpoint_waits.hpp"
#include "driver/run_naming.hpp"
#include "driver/signal_watch.hpp"
#include "driver/trainer_spawning.hpp"
#include <troupe/runtime/job_variable.hpp>

#include <troupe/actor_system.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/runtime/program.hpp>

#include <caf/all.hpp>
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace troupe {

namespace {

class observer_state : public actors::run_observer::base {
 public:
  observer_state(caf::actor_config& cfg, const run_callbacks& callbacks, runtime::checkpoint_waits& waits)
      : actors::run_observer::base(cfg), callbacks_(callbacks), waits_(waits) {}

  behavior_type make_behavior() override {
    return {
        [this](const run_started& x) { call(callbacks_.started, x); },
        [this](const run_progress& x) { answer_and_call(callbacks_.progress, x); },
        [this](const checkpoint_saved& x) { answer_and_call(callbacks_.saved, x); },
        [this](const checkpoint_skipped& x) { answer_and_call(callbacks_.skipped, x); },
        [this](const checkpoint_failed& x) { answer_and_call(callbacks_.failed, x); },
        [this](const generation_record& x) { call(callbacks_.regrouped, x); },
        [this](const run_notice& x) { call(callbacks_.notice, x); },
    };
  }

  const char* name() const override { return "troupe.observer"; }

 private:
  template <class Event>
  static void call(const std::function<void(const Event&)>& callback, const Event& event) {
    if (callback)
      callback(event);
  }

  template <class Event>
  void answer_and_call(const std::function<void(const Event&)>& callback, const Event& event) {
    waits_.on(event);
    call(callback, event);
  }

  const run_callbacks& callbacks_;
  runtime::checkpoint_waits& waits_;
};

void print(const run_notice& what) {
  std::fprintf(stderr, "%s%s\n", what.warning ? "warning: " : "", what.text.c_str());
}

run_callbacks with_defaults(run_callbacks callbacks) {
  if (!callbacks.notice)
    callbacks.notice = print;
  return callbacks;
}

} // namespace

/// Where the runs of a trainer take place, one after the other.
struct run_place {
  caf::actor_system_config config;
  std::optional<caf::actor_system> system;
  /// Keeps the workers' processes from one run to the next; null if each run has its own. Ends before the system.
  std::shared_ptr<runtime::kept_processes> kept;
};

class trainer::impl {
 public:
  impl(app program, function train, trainer_config config)
      : program_(std::move(program)), train_(std::move(train)), config_(std::move(config)) {}

  ~impl() { shutdown(); }

  expected<void> start() {
    if (place_)
      return {};
    TROUPE_TRY(auto place, make_place(config_.cluster));
    place->kept = std::make_shared<runtime::kept_processes>(*place->system, [this](const processes_ended& event) {
      callbacks_.notice({{},
                         false,
                         fmt::format("{} processes that waited on node {} for the next run have ended: run {} starts "
                                     "workers there",
                                     event.count, event.node, event.run_name)});
    });
    place_ = std::move(place);
    runs_ = 0;
    return {};
  }

  void shutdown() { place_.reset(); }

  run_result fit() {
    // Another attempt is one of the same run.
    name(config_);
    return run_at_place(train_, config_);
  }

  run_result run(const function& train, trainer_config config) {
    if (!place_)
      return failed(config, {errc::invalid_argument, "the trainer has not been started: call start() before run()"});
    ++runs_;
    if (runs_ > 1 && !config.run.name.empty())
      config.run.name += "-" + std::to_string(runs_);
    config.cluster = config_.cluster;
    name(config);
    return run_at_place(program_.find_function(train.name), config);
  }

  runtime::checkpoint_waits::answer save_checkpoint() {
    auto result = waits_.add();
    // A refusal is a notice, too, and the answer comes with the end of the run.
    tell(checkpoint_request{});
    return result;
  }

  template <class Request>
  void tell(const Request& request) {
    if (auto whom = current())
      caf::anon_send(whom, request);
  }

  app program_;
  function train_;
  trainer_config config_;
  run_callbacks callbacks_ = with_defaults({});
  std::atomic<int> signal_{0};
  std::atomic<run_status> status_{run_status::failed};
  std::atomic<bool> is_out_of_time_{false};

 private:
  static void name(trainer_config& config) {
    runtime::obey_in_process_variable(config);
    runtime::obey_job_variable(config);
    runtime::name_run(config);
  }

  static run_result failed(const trainer_config& config, error reason) {
    run_result result;
    result.name = config.run.name;
    result.reason = std::move(reason);
    return result;
  }

  [[nodiscard]] expected<std::unique_ptr<run_place>> make_place(const cluster_config& cluster) const {
    init_meta_objects();
    auto result = std::make_unique<run_place>();
    result->config.set("caf.scheduler.policy", "sharing");
    result->config.set("caf.scheduler.max-threads", 2);
    if (const auto& path = program_.worker_path(); !path.empty())
      if (auto program = runtime::program_file::open(path.string()); !program)
        return fail(program.error().code, program.error().message + ": the workers are processes of it");
    TROUPE_TRY(prepare(result->config, cluster));
    result->system.emplace(result->config);
    return result;
  }

  /// In the place that was started, or in one for this run alone.
  run_result run_at_place(const function& train, const trainer_config& config) {
    signal_ = 0;
    waits_.on_begin();
    auto result = run_somewhere(train, config);
    waits_.on_end(result);
    return result;
  }

  run_result run_somewhere(const function& train, const trainer_config& config) {
    if (place_)
      return run_at(*place_, train, config);
    auto own = make_place(config.cluster);
    return own ? run_at(**own, train, config) : failed(config, std::move(own.error()));
  }

  run_result run_at(run_place& place, const function& train, const trainer_config& config) {
    std::function<void(rank_id, const std::string&)> show;
    if (callbacks_.output)
      show = [this](rank_id rank, const std::string& line) { callbacks_.output(rank.value, line); };
    auto self = caf::scoped_actor{*place.system};
    auto observer = place.system->spawn<observer_state, caf::detached>(callbacks_, waits_);
    set_current(
        runtime::spawn_trainer_on(*place.system, train, config, std::move(show), program_.worker_path(), place.kept));
    auto result = failed(config, {errc::internal, "the trainer gave no answer"});
    {
      auto signals = runtime::signal_watch{[this](int signal, int count) { interrupted(signal, count); }};
      self->send(current(), observer);
      self->request(current(), caf::infinite, fit_request{})
          .receive([&](run_result& x) { result = std::move(x); },
                   [&](const caf::error& reason) { result = failed(config, actors::from_caf(reason)); });
    }
    set_current({});
    // What has been sent to the observer comes before its end.
    self->send_exit(observer, caf::exit_reason::user_shutdown);
    self->wait_for(observer);
    status_ = result.status;
    is_out_of_time_ = result.is_out_of_time();
    return result;
  }

  void interrupted(int signal, int count) {
    signal_ = signal;
    tell(stop_request{count > 1});
    // It may wait for a terminal that does not read.
    callbacks_.notice(
        {{},
         true,
         count == 1 ? "stopping after this step; press Ctrl-C again to stop immediately" : "stopping at once"});
  }

  actors::trainer_actor current() const {
    auto lock = std::lock_guard{mutex_};
    return current_;
  }

  void set_current(actors::trainer_actor whom) {
    auto lock = std::lock_guard{mutex_};
    current_ = std::move(whom);
  }

  runtime::checkpoint_waits waits_;
  std::unique_ptr<run_place> place_;
  /// Since the start.
  unsigned runs_ = 0;
  mutable std::mutex mutex_;
  actors::trainer_actor current_;
};

trainer::trainer(const app& program, const function& train, trainer_config config)
    : impl_(std::make_unique<impl>(program, program.find_function(train.name), std::move(config))) {}

trainer::~trainer() = default;

void trainer::set_callbacks(run_callbacks callbacks) {
  impl_->callbacks_ = with_defaults(std::move(callbacks));
}

void trainer::load_checkpoint(std::filesystem::path checkpoint, load_options options) {
  impl_->config_.load_checkpoint = std::move(checkpoint);
  impl_->config_.load = std::move(options);
}

expected<void> trainer::start() {
  return impl_->start();
}

run_result trainer::run(const function& train) {
  return impl_->run(train, impl_->config_);
}

run_result trainer::run(const function& train, trainer_config config) {
  return impl_->run(train, std::move(config));
}

void trainer::shutdown() {
  impl_->shutdown();
}

run_result trainer::fit() {
  return impl_->fit();
}

run_result trainer::fit_or_throw() {
  auto result = fit();
  if (result.status == run_status::failed)
    throw exception{std::move(result.reason)};
  return result;
}

void trainer::stop() {
  impl_->tell(stop_request{false});
}

std::shared_future<expected<std::filesystem::path>> trainer::save_checkpoint() {
  return impl_->save_checkpoint();
}

void trainer::resize(std::uint32_t workers) {
  impl_->tell(resize_request{workers});
}

void trainer::pause() {
  impl_->tell(pause_request{});
}

void trainer::resume() {
  impl_->tell(resume_request{});
}

int trainer::exit_code() const noexcept {
  if (impl_->signal_ != 0 && impl_->status_ == run_status::stopped)
    return 128 + impl_->signal_;
  return impl_->status_ == run_status::failed ? 1 : impl_->is_out_of_time_ ? exit_out_of_time : 0;
}

} // namespace troupe

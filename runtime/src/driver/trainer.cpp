#include <troupe/trainer.hpp>

#include "driver/job_variable.hpp"
#include "driver/run_naming.hpp"
#include "driver/signal_watch.hpp"

#include <troupe/actor_system.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/runtime/program.hpp>

#include <caf/all.hpp>

#include <atomic>
#include <cstdio>
#include <mutex>

namespace troupe {

namespace {

class observer_state : public actors::run_observer::base {
 public:
  observer_state(caf::actor_config& cfg, const run_callbacks& callbacks)
      : actors::run_observer::base(cfg), callbacks_(callbacks) {}

  behavior_type make_behavior() override {
    return {
        [this](const run_started& x) { call(callbacks_.started, x); },
        [this](const run_progress& x) { call(callbacks_.progress, x); },
        [this](const checkpoint_saved& x) { call(callbacks_.saved, x); },
        [this](const checkpoint_skipped& x) { call(callbacks_.skipped, x); },
        [this](const checkpoint_failed& x) { call(callbacks_.failed, x); },
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

  const run_callbacks& callbacks_;
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

class trainer::impl {
 public:
  impl(function train, trainer_config config, std::filesystem::path worker_path)
      : train_(std::move(train)), config_(std::move(config)), worker_path_(std::move(worker_path)) {}

  run_result fit() {
    signal_ = 0;
    // Another attempt is one of the same run.
    runtime::obey_in_process_variable(config_);
    runtime::obey_job_variable(config_);
    runtime::name_run(config_);
    init_meta_objects();
    caf::actor_system_config system_config;
    system_config.set("caf.scheduler.policy", "sharing");
    system_config.set("caf.scheduler.max-threads", 2);
    if (!worker_path_.empty())
      if (auto program = runtime::program_file::open(worker_path_.string()); !program)
        return failed({program.error().code, program.error().message + ": the workers are processes of it"});
    if (auto ready = prepare(system_config, config_.cluster); !ready)
      return failed(ready.error());
    caf::actor_system system{system_config};
    std::function<void(rank_id, const std::string&)> show;
    if (callbacks_.output)
      show = [this](rank_id rank, const std::string& line) { callbacks_.output(rank.value, line); };
    auto self = caf::scoped_actor{system};
    auto observer = system.spawn<observer_state, caf::detached>(callbacks_);
    set_current(spawn_trainer(system, train_, config_, std::move(show), worker_path_));
    auto result = failed({errc::internal, "the trainer gave no answer"});
    {
      auto signals = runtime::signal_watch{[this](int signal, int count) { interrupted(signal, count); }};
      self->send(current(), observer);
      self->request(current(), caf::infinite, fit_request{})
          .receive([&](run_result& x) { result = std::move(x); },
                   [&](const caf::error& reason) { result = failed(actors::from_caf(reason)); });
    }
    set_current({});
    // What has been sent to the observer comes before its end.
    self->send_exit(observer, caf::exit_reason::user_shutdown);
    self->wait_for(observer);
    status_ = result.status;
    is_out_of_time_ = result.is_out_of_time();
    return result;
  }

  template <class Request>
  void tell(const Request& request) {
    if (auto whom = current())
      caf::anon_send(whom, request);
  }

  function train_;
  trainer_config config_;
  std::filesystem::path worker_path_;
  run_callbacks callbacks_ = with_defaults({});
  std::atomic<int> signal_{0};
  std::atomic<run_status> status_{run_status::failed};
  std::atomic<bool> is_out_of_time_{false};

 private:
  run_result failed(error reason) const {
    run_result result;
    result.name = config_.run.name;
    result.reason = std::move(reason);
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

  mutable std::mutex mutex_;
  actors::trainer_actor current_;
};

trainer::trainer(const app& program, const function& train, trainer_config config)
    : impl_(std::make_unique<impl>(program.find_function(train.name), std::move(config), program.worker_path())) {}

trainer::~trainer() = default;

void trainer::set_callbacks(run_callbacks callbacks) {
  impl_->callbacks_ = with_defaults(std::move(callbacks));
}

void trainer::load_checkpoint(std::filesystem::path checkpoint, load_options options) {
  impl_->config_.load_checkpoint = std::move(checkpoint);
  impl_->config_.load = std::move(options);
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

void trainer::save_checkpoint() {
  impl_->tell(checkpoint_request{});
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

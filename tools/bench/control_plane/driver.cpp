#include "driver.hpp"

#include "process_usage.hpp"

#include <troupe/actor_system.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/actors/handles.hpp>

#include <caf/all.hpp>

#include <cstdio>
#include <thread>

namespace troupe::bench {

namespace {

class observer : public actors::run_observer::base {
 public:
  observer(caf::actor_config& cfg, event_writer events) : actors::run_observer::base(cfg), events_(events) {}

  behavior_type make_behavior() override {
    return {
        [](const run_started&) {},
        [](const run_progress&) {},
        [](const checkpoint_saved&) {},
        [](const checkpoint_skipped&) {},
        [](const checkpoint_failed&) {},
        [this](const generation_record& x) { events_.write(event_kind::decided, x.generation.value); },
        [](const run_notice&) {},
    };
  }

 private:
  event_writer events_;
};

} // namespace

void run_driver(const driver_setup& setup) {
  init_meta_objects();
  caf::actor_system_config config;
  config.set("caf.scheduler.policy", "sharing");
  config.set("caf.scheduler.max-threads", 2);
  value_or_throw(prepare(config, setup.config.cluster));
  caf::actor_system system{config};
  auto self = caf::scoped_actor{system};
  auto events = system.spawn<observer, caf::detached>(setup.events);
  auto trainer = spawn_trainer(system, function{"simulated", {}}, setup.config, [](rank_id, const std::string&) {});
  self->send(trainer, events);
  setup.events.write(event_kind::begins, memory_of(::getpid()).now_bytes);
  auto stopper = std::thread{[&] {
    char command = 0;
    if (::read(setup.commands, &command, 1) == 1)
      caf::anon_send(trainer, stop_request{true});
  }};
  auto status = run_status::failed;
  self->request(trainer, caf::infinite, fit_request{})
      .receive(
          [&](const run_result& result) {
            status = result.status;
            if (status == run_status::failed)
              std::fprintf(stderr, "the run failed: %s\n", result.reason.message.c_str());
          },
          [](const caf::error& reason) { std::fprintf(stderr, "%s\n", actors::from_caf(reason).message.c_str()); });
  setup.events.write(event_kind::ended, static_cast<std::uint64_t>(status));
  // The command's sender waits for this process. A failed run got no command to end.
  stopper.detach();
  self->send_exit(events, caf::exit_reason::user_shutdown);
  self->wait_for(events);
}

} // namespace troupe::bench

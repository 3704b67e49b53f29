#include "trainer/control_desk.hpp"

#include "trainer/interface.hpp"
#include "trainer/run_events.hpp"

#include <troupe/actors/decisions/control_requests.hpp>
#include <troupe/actors/error_conversion.hpp>

#include <caf/all.hpp>
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>

namespace troupe::actors {

namespace {

using json = nlohmann::ordered_json;
using clock = std::chrono::system_clock;

/// How often those who watch get the status.
constexpr auto status_interval = std::chrono::milliseconds{500};

/// Questions that come faster than that are answered without the trainer.
constexpr auto fresh = std::chrono::milliseconds{50};

/// The trainer answers at once; its journal may wait for a disk.
constexpr auto trainer_timeout = std::chrono::seconds{30};

using desk_base = control_desk::base;

class control_desk_state : public desk_base {
 public:
  control_desk_state(caf::actor_config& cfg, control_desk_config config)
      : desk_base(cfg), what_(std::move(config)), model_(what_.who) {}

  behavior_type make_behavior() override {
    if (const auto trainer = trainer_of_run())
      send(trainer, caf::actor_cast<run_observer>(caf::actor_cast<control_desk>(ctrl())));
    return {
        // What is recorded comes as `append_event`.
        [](const run_started&) {},
        [this](const run_progress& x) { model_.on(x); },
        [this](const checkpoint_saved& x) { model_.on(x, clock::now()); },
        [](const checkpoint_skipped&) {},
        [](const checkpoint_failed&) {},
        [](const generation_record&) {},
        [this](const run_notice& x) {
          // Warnings are recorded.
          if (!x.warning)
            publish(clock::now(), {{"event", "notice"}, {"text", x.text}});
        },
        [this](const control_line& line) { take(line); },
        [this](const append_event& x) { publish(x.when, x.what); },
        [this](const run_over& x) {
          const auto now = clock::now();
          model_.on(x.result, now);
          publish(now, {{"event", "ended"}, {"status", model_.status(now)}});
        },
    };
  }

  const char* name() const override { return "troupe.control_desk"; }

 private:
  [[nodiscard]] trainer_interface trainer_of_run() const {
    return caf::actor_cast<trainer_interface>(what_.trainer.lock());
  }

  void take(const control_line& line) {
    const auto asked = parse_control_request(line.text);
    if (!asked)
      return refuse(line.from, asked.error());
    const auto is_question = std::holds_alternative<status_question>(*asked);
    if (is_question && std::chrono::steady_clock::now() - known_at_ < fresh)
      return accept(line.from, *asked);
    ask_trainer(line.from, condition_question{}, [this, from = line.from, asked = *asked](const run_condition& now) {
      learn(now);
      if (const auto why = refusal_of(asked, now))
        return refuse(from, *why);
      std::visit([&](const auto& what) { carry_out(from, asked, what); }, asked);
    });
  }

  void carry_out(control_port::connection from, const control_request& asked, const status_question&) {
    accept(from, asked);
  }

  void carry_out(control_port::connection from, const control_request& asked, const watch_request&) {
    accept(from, asked);
    what_.port->subscribe(from);
    if (!std::exchange(is_ticking_, true))
      tick_later();
  }

  template <class Request>
  void carry_out(control_port::connection from, const control_request& asked, const Request& what) {
    if (const auto trainer = trainer_of_run())
      send(trainer, file_notice{severity::note, fmt::format("asked from another terminal: {}", name_of(asked))});
    ask_trainer(from, what, [this, from, asked] {
      known_at_ = {};
      accept(from, asked);
    });
  }

  template <class Question, class Reaction>
  void ask_trainer(control_port::connection from, const Question& what, Reaction react) {
    const auto trainer = trainer_of_run();
    if (!trainer)
      return refuse(from, {errc::stopped, "the run is over"});
    request(trainer, trainer_timeout, what).then(std::move(react), [this, from](const caf::error& reason) {
      refuse(from, from_caf(reason));
    });
  }

  void learn(const run_condition& now) {
    known_at_ = std::chrono::steady_clock::now();
    model_.on(now, clock::now());
  }

  void accept(control_port::connection from, const control_request& asked) {
    what_.port->answer(from, answer_line(asked, model_.status(clock::now())));
  }

  void refuse(control_port::connection from, const error& why) { what_.port->answer(from, error_line(why)); }

  void tick_later() {
    run_delayed(status_interval, [this] { tick(); });
  }

  /// Goes on while somebody watches.
  void tick() {
    const auto trainer = trainer_of_run();
    is_ticking_ = trainer && what_.port->has_subscribers();
    if (!is_ticking_)
      return;
    request(trainer, trainer_timeout, condition_question{})
        .then(
            [this](const run_condition& now) {
              learn(now);
              publish(clock::now(), {{"event", "status"}, {"status", model_.status(clock::now())}});
              tick_later();
            },
            [this](const caf::error&) { tick_later(); });
  }

  void publish(clock::time_point when, const json& what) const {
    if (!what_.port->has_subscribers())
      return;
    json line{{"time", utc_text(when)}};
    line.update(what);
    what_.port->publish(line.dump(-1, ' ', false, json::error_handler_t::replace));
  }

  control_desk_config what_;
  run_status_model model_;
  /// When the trainer told what the run does; long ago if it may have changed since.
  std::chrono::steady_clock::time_point known_at_{};
  bool is_ticking_ = false;
};

} // namespace

control_desk spawn_control_desk(caf::actor_system& system, control_desk_config config) {
  return caf::actor_cast<control_desk>(system.spawn<control_desk_state>(std::move(config)));
}

} // namespace troupe::actors

#pragma once

#include <caf/actor_config.hpp>
#include <caf/exit_reason.hpp>
#include <caf/scheduled_actor.hpp>
#include <caf/system_messages.hpp>

#include <utility>

namespace troupe::actors {

/// A base for actors that own external resources: files, processes. These are released before the actor's end is
/// reported. CAF 0.18 calls `on_exit` before it reports an actor's end, CAF 1.0 and later after it, so `let_go` is
/// called when the exit message arrives. It comes too late only after `exit_reason::kill`.
template <class Base>
class orderly_end : public Base {
 public:
  explicit orderly_end(caf::actor_config& cfg) : Base(cfg) {
// CAF 1.1 wants a message handler instead, which the typed actors of 0.18 cannot have.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    this->set_exit_handler([this](caf::exit_msg& message) {
      if (message.reason)
        end_and_quit(message.reason);
    });
#pragma GCC diagnostic pop
  }

  void on_exit() final {
    let_go_once();
  }

 protected:
  /// Releases this actor's resources. Called once.
  virtual void let_go() = 0;

  void end_and_quit(caf::error reason = caf::exit_reason::normal) {
    let_go_once();
    this->quit(std::move(reason));
  }

 private:
  void let_go_once() {
    if (!std::exchange(has_ended_, true))
      let_go();
  }

  bool has_ended_ = false;
};

} // namespace troupe::actors

#include "trainer/node_discovery.hpp"

#include <caf/all.hpp>

#include <exception>

namespace troupe::actors {

namespace {

using namespace std::chrono_literals;

/// A node that is named is used within this time.
constexpr auto ask_interval = 2s;

} // namespace

void node_discovery::on_tick(clock::time_point now) {
  if (is_asking_ || (asked_ && now - *asked_ < ask_interval))
    return;
  asked_ = now;
  is_asking_ = true;
  self_->system().spawn<caf::detached>([trainer = caf::actor_cast<caf::weak_actor_ptr>(self_->ctrl()), find = find_] {
    nodes_found message;
    try {
      message.nodes = find();
    } catch (const std::exception& x) {
      message.nodes = fail(errc::unreachable, x.what());
    }
    if (auto strong = trainer.lock())
      caf::anon_send(caf::actor_cast<trainer_interface>(strong), std::move(message));
  });
}

node_naming::change node_discovery::take(const nodes_found& answer) {
  is_asking_ = false;
  return naming_.take(answer.nodes);
}

} // namespace troupe::actors

#include "trainer/node_links.hpp"

#include "down.hpp"

#include <caf/all.hpp>

#include <utility>

namespace troupe::actors {

namespace {

/// Sends a message to an actor that may have ended, from any thread.
template <class Message>
void try_send(const caf::weak_actor_ptr& whom, Message message) {
  if (auto strong = whom.lock())
    caf::anon_send(caf::actor_cast<trainer_interface>(strong), std::move(message));
}

} // namespace

void node_links::dial(std::uint32_t index, const std::string& address, std::chrono::milliseconds limit) {
  if (std::exchange(links_[index].is_dialled, true))
    return;
  self_->system().spawn<caf::detached>(
      [trainer = caf::actor_cast<caf::weak_actor_ptr>(self_->ctrl()), connect = connect_, index, address, limit] {
        node_dialled message;
        message.node = index;
        try {
          message.connection = value_or_throw(connect(address, limit));
        } catch (const exception& x) {
          message.reason = x.reason();
        } catch (const std::exception& x) {
          message.reason = {errc::unreachable, x.what()};
        }
        try_send(trainer, std::move(message));
      });
}

void node_links::accept(std::uint32_t index, std::shared_ptr<connected_node> connection) {
  links_[index].connection = std::move(connection);
  links_[index].number = ++connections_;
  when_down(links_[index].connection->handle(),
            [trainer = caf::actor_cast<caf::weak_actor_ptr>(self_->ctrl()),
             down = node_down{index, connections_}](down_cause) { try_send(trainer, down); });
}

bool node_links::is_current(const node_down& message) const {
  return links_[message.node].number == message.connection;
}

void node_links::disconnect(std::uint32_t index) {
  links_[index].number = 0;
  self_->system().spawn<caf::detached>(
      [connection = std::exchange(links_[index].connection, {})]() mutable { connection.reset(); });
}

std::optional<std::uint32_t> node_links::find(const caf::strong_actor_ptr& actor) const {
  for (std::uint32_t i = 0; i < links_.size(); ++i)
    if (links_[i].connection && caf::actor_cast<caf::strong_actor_ptr>(links_[i].connection->handle()) == actor)
      return i;
  return std::nullopt;
}

} // namespace troupe::actors

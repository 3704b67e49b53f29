#include "driver/kept_processes.hpp"

#include <troupe/serialization/files/digest.hpp>

#include <caf/all.hpp>

#include <string>
#include <utility>

namespace troupe::runtime {

namespace {

actors::process_keeper::behavior_type keep(std::function<void(const processes_ended&)> on_ended) {
  return {[on_ended = std::move(on_ended)](const processes_ended& event) { on_ended(event); }};
}

/// One run's share of it.
class lent_node : public actors::connected_node {
 public:
  explicit lent_node(std::shared_ptr<actors::connected_node> node) : node_(std::move(node)) {}

  const actors::node_actor& handle() const noexcept override { return node_->handle(); }
  std::string address() const override { return node_->address(); }

 private:
  std::shared_ptr<actors::connected_node> node_;
};

} // namespace

kept_processes::kept_processes(caf::actor_system& system, std::function<void(const processes_ended&)> on_ended)
    : group_{serialization::random_hex(16), system.spawn(keep, std::move(on_ended))} {}

kept_processes::~kept_processes() {
  caf::anon_send_exit(group_.keeper, caf::exit_reason::user_shutdown);
}

expected<std::unique_ptr<actors::connected_node>>
kept_processes::own_node(const std::function<expected<std::unique_ptr<actors::connected_node>>()>& start) {
  auto lock = std::lock_guard{mutex_};
  if (!node_) {
    TROUPE_TRY(node_, start());
  }
  return std::make_unique<lent_node>(node_);
}

} // namespace troupe::runtime

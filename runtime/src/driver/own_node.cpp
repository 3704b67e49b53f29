#include "driver/own_node.hpp"

#include "net/connection.hpp"
#include "node/in_process_launcher.hpp"
#include "node/visible_gpus.hpp"

#include <troupe/actors/node.hpp>
#include <troupe/runtime/node_host.hpp>

#include <caf/all.hpp>

#include <utility>

namespace troupe::runtime {

namespace {

class embedded_node : public actors::connected_node {
 public:
  static expected<std::unique_ptr<actors::connected_node>> start(caf::actor_system& system,
                                                                 const std::optional<tls_files>& keys,
                                                                 const std::string& program,
                                                                 const std::optional<function>& in_process) {
    auto entry = std::make_shared<worker_entry>(keys);
    auto launcher = in_process ? make_in_process_launcher(*in_process, entry)
                               : make_local_launcher(std::make_shared<program_finder>(one_program{program}), entry);
    std::shared_ptr<key_source> source;
    if (keys) {
      TROUPE_TRY(source, key_source::make(*keys));
    }
    auto node = actors::spawn_node(
        system, {local_host_name(), "127.0.0.1", local_resources(), {}, value_or_throw(gpus_to_offer({}))}, launcher);
    auto port = publish(node, {"127.0.0.1", 0}, std::move(source));
    if (!port) {
      caf::anon_send_exit(node, caf::exit_reason::user_shutdown);
      return fail(std::move(port.error()));
    }
    entry->open({"127.0.0.1", *port});
    return std::make_unique<embedded_node>(std::move(node), *port);
  }

  embedded_node(actors::node_actor handle, std::uint16_t port) : handle_(std::move(handle)), port_(port) {}

  ~embedded_node() override {
    unpublish(handle_, port_);
    caf::anon_send_exit(handle_, caf::exit_reason::user_shutdown);
  }

  const actors::node_actor& handle() const noexcept override { return handle_; }
  std::string address() const override { return "embedded"; }

 private:
  actors::node_actor handle_;
  std::uint16_t port_;
};

} // namespace

expected<std::unique_ptr<actors::connected_node>> start_own_node(caf::actor_system& system,
                                                                 const std::optional<tls_files>& keys,
                                                                 const std::string& program,
                                                                 const std::optional<function>& in_process) {
  return embedded_node::start(system, keys, program, in_process);
}

} // namespace troupe::runtime

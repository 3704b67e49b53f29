#include <troupe/runtime/node_host.hpp>

#include "net/connection.hpp"
#include "node/local_launcher.hpp"
#include "node/visible_gpus.hpp"

#include <troupe/actor_system.hpp>
#include <troupe/actors/node.hpp>
#include <troupe/runtime/keys.hpp>

#include <caf/all.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <sched.h>
#include <unistd.h>

namespace troupe::runtime {

resources local_resources() {
  resources result;
  cpu_set_t set;
  CPU_ZERO(&set);
  result.cpus = ::sched_getaffinity(0, sizeof(set), &set) == 0 ? static_cast<std::uint32_t>(CPU_COUNT(&set)) : 1;
  result.gpus = static_cast<double>(value_or_throw(gpus_to_offer({})).size());
  return result;
}

std::string local_host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

class node_host::impl {
 public:
  /// A name for other hosts: they cannot use the wildcard address that the node may listen on.
  static std::string reachable_name(const std::string& host) {
    return host == "0.0.0.0" || host == "::" ? local_host_name() : host;
  }

  impl(const node_options& options, const std::optional<tls_files>& keys, std::vector<std::string> devices)
      : config_(make_config(keys)), system_(*config_), entry_(std::make_shared<worker_entry>(keys)) {
    offered_ = local_resources();
    offered_.cpus = options.cpus.value_or(offered_.cpus);
    offered_.gpus = static_cast<double>(devices.size());
    node_ = actors::spawn_node(
        system_, {local_host_name(), reachable_name(options.listen.host), offered_, options.log, std::move(devices)},
        make_local_launcher({options.program_directory, false}, entry_));
  }

  ~impl() {
    {
      auto self = caf::scoped_actor{system_};
      self->send_exit(node_, caf::exit_reason::user_shutdown);
      self->wait_for(node_);
    }
    node_ = nullptr;
  }

  /// Workers always connect over loopback. A node that does not listen there opens a second port for them.
  expected<void> open(const endpoint& listen) {
    if (!is_loopback(listen.host)) {
      TROUPE_TRY(auto inner, publish(node_, {"127.0.0.1", 0}));
      entry_->open({"127.0.0.1", inner});
    }
    TROUPE_TRY(auto port, publish(node_, listen));
    address_ = {listen.host, port};
    if (is_loopback(listen.host))
      entry_->open(address_);
    return {};
  }

  /// Asks the drivers to move their workers away. Sets `drained_` when none is left or the grace period is over.
  void drain(std::chrono::milliseconds grace) {
    system_.spawn([node = node_, grace, done = drained_](caf::event_based_actor* self) {
      auto finish = [done] { *done = true; };
      self->request(node, caf::infinite, actors::drain_request{static_cast<std::uint64_t>(grace.count())})
          .then(finish, [finish](const caf::error&) { finish(); });
    });
  }

  static std::unique_ptr<caf::actor_system_config> make_config(const std::optional<tls_files>& keys) {
    auto config = std::make_unique<caf::actor_system_config>();
    config->set("caf.scheduler.policy", "sharing");
    config->set("caf.scheduler.max-threads", 2);
    secure(*config, keys);
    return config;
  }

  std::unique_ptr<caf::actor_system_config> config_;
  caf::actor_system system_;
  std::shared_ptr<worker_entry> entry_;
  actors::node_actor node_;
  endpoint address_;
  resources offered_;
  std::shared_ptr<std::atomic<bool>> drained_ = std::make_shared<std::atomic<bool>>(false);
};

expected<node_host> node_host::start(const node_options& options) {
  std::optional<tls_files> keys;
  if (!options.insecure) {
    auto directory = options.keys.empty() ? default_key_directory() : options.keys;
    TROUPE_TRY(auto found, is_loopback(options.listen.host) ? loopback_keys(directory)
                                                            : cluster_keys(directory, options.listen.host));
    keys = std::move(found);
  }
  TROUPE_TRY(auto devices, gpus_to_offer(options.gpus));
  init_meta_objects();
  auto state = std::make_unique<impl>(options, keys, std::move(devices));
  TROUPE_TRY(state->open(options.listen));
  return node_host{std::move(state)};
}

node_host::node_host(std::unique_ptr<impl> state) : impl_(std::move(state)) {}
node_host::node_host(node_host&&) noexcept = default;
node_host& node_host::operator=(node_host&&) noexcept = default;
node_host::~node_host() = default;

const endpoint& node_host::address() const noexcept {
  return impl_->address_;
}

void node_host::drain(std::chrono::milliseconds grace) {
  impl_->drain(grace);
}

bool node_host::drained() const noexcept {
  return *impl_->drained_;
}

const resources& node_host::offered() const noexcept {
  return impl_->offered_;
}

} // namespace troupe::runtime

#include <troupe/runtime/node_host.hpp>

#include "monitoring/node_monitor.hpp"
#include "net/connection.hpp"
#include "net/host_name.hpp"
#include "net/keys/certificates.hpp"
#include "net/keys/key_files.hpp"
#include "net/keys/key_source.hpp"
#include "node/local_launcher.hpp"
#include "node/visible_gpus.hpp"

#include <troupe/actor_system.hpp>
#include <troupe/actors/node.hpp>
#include <troupe/node_names.hpp>
#include <troupe/runtime/keys.hpp>

#include <caf/all.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <sched.h>
#include <string>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace {

/// This host's memory, or what the control group leaves of it.
std::uint64_t usable_memory_bytes() {
  auto result =
      static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  auto limit = std::uint64_t{0};
  if (std::ifstream{"/sys/fs/cgroup/memory.max"} >> limit && limit > 0)
    result = std::min(result, limit);
  return result;
}

} // namespace

resources local_resources() {
  resources result;
  cpu_set_t set;
  CPU_ZERO(&set);
  result.cpus = ::sched_getaffinity(0, sizeof(set), &set) == 0 ? static_cast<std::uint32_t>(CPU_COUNT(&set)) : 1;
  result.gpus = static_cast<double>(value_or_throw(gpus_to_offer({})).size());
  result.memory_bytes = usable_memory_bytes();
  return result;
}

std::string local_host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

namespace {

using namespace std::chrono_literals;

/// The keys of a node: `outer` for drivers, `inner` for its own workers, which never get keys of the cluster. Null
/// without TLS.
struct node_keys {
  std::shared_ptr<key_source> outer;
  std::shared_ptr<key_source> inner;

  static expected<node_keys> find(const node_options& options) {
    if (options.insecure)
      return node_keys{};
    const auto directory = options.keys.empty() ? default_key_directory() : options.keys;
    node_keys result;
    if (!is_loopback(options.listen.host)) {
      TROUPE_TRY(auto cluster, cluster_keys(directory, options.listen.host, certificate_role::node));
      TROUPE_TRY(result.outer, key_source::make(std::move(cluster), options.log));
    }
    TROUPE_TRY(auto loopback, loopback_keys(directory));
    TROUPE_TRY(result.inner, key_source::make(std::move(loopback), options.log));
    if (!result.outer)
      result.outer = result.inner;
    return result;
  }

  [[nodiscard]] std::optional<tls_files> for_workers() const {
    return inner ? std::optional{inner->files()} : std::nullopt;
  }
};

expected<program_source> find_programs(const node_options& options) {
  if (!options.program_directory.empty())
    return bounding_directory(options.program_directory).map([](program_directory x) {
      return program_source{std::move(x)};
    });
  if (is_loopback(options.listen.host) && !options.insecure)
    return drivers_path{};
  return fail(errc::invalid_argument,
              fmt::format("a node that {} starts only the programs of one directory: name it with --program-dir",
                          options.insecure ? "does not know who connects (--insecure)"
                                           : "listens beyond loopback, on " + to_string(options.listen)));
}

constexpr auto look_interval = 1h;
constexpr auto warning_interval = 24h;

/// When the certificate expires, in seconds since 1970. Nothing for those of this machine alone, which are made anew.
std::optional<std::int64_t> expiry_of_cluster(const tls_files& files) {
  if (files.scope != key_scope::cluster)
    return std::nullopt;
  const auto certificate = read_certificate(files.certificate);
  if (!certificate)
    return std::nullopt;
  return std::chrono::duration_cast<std::chrono::seconds>(expiry_of(certificate->get()).time_since_epoch()).count();
}

/// In seconds since 1970; 0 without a certificate of a cluster.
using certificate_expiry = std::atomic<std::int64_t>;

/// Reads renewed keys even without new connections, and warns once a day before they expire.
class key_watch : public caf::event_based_actor {
 public:
  key_watch(caf::actor_config& cfg, std::shared_ptr<key_source> keys, std::shared_ptr<certificate_expiry> expires)
      : caf::event_based_actor(cfg), keys_(std::move(keys)), expires_(std::move(expires)) {}

  caf::behavior make_behavior() override {
    look();
    return {[](caf::unit_t) {}};
  }

  const char* name() const override { return "troupe.key_watch"; }

 private:
  void look() {
    std::ignore = keys_->current();
    *expires_ = expiry_of_cluster(keys_->files()).value_or(0);
    const auto now = std::chrono::system_clock::now();
    if (const auto warning = expiry_warning(keys_->files(), now);
        !warning.empty() && now - warned_ >= warning_interval) {
      keys_->log("warning: " + warning);
      warned_ = now;
    }
    run_delayed(look_interval, [this] { look(); });
  }

  std::shared_ptr<key_source> keys_;
  std::shared_ptr<certificate_expiry> expires_;
  std::chrono::system_clock::time_point warned_;
};

constexpr auto local_peers_interval = 10s;

/// A debugger may hold a worker for longer than CAF's timeout, which drivers on other hosts need.
caf::behavior keep_local_peers(caf::event_based_actor* self) {
  keep_silent_local_connections(self->system());
  self->run_delayed(local_peers_interval, [self] { self->become(keep_local_peers(self)); });
  return {[](caf::unit_t) {}};
}

} // namespace

class node_host::impl {
 public:
  /// A name for other hosts: they cannot use the wildcard address that the node may listen on.
  static std::string reachable_name(const std::string& host) {
    return host == "0.0.0.0" || host == "::" ? local_host_name() : host;
  }

  impl(const node_options& options, node_keys keys, program_source programs, std::vector<std::string> devices)
      : keys_(std::move(keys)),
        config_(make_config(keys_.for_workers(), is_loopback(options.listen.host))),
        system_(*config_),
        entry_(std::make_shared<worker_entry>(keys_.for_workers())) {
    offered_ = local_resources();
    offered_.cpus = options.cpus.value_or(offered_.cpus);
    offered_.gpus = static_cast<double>(devices.size());
    offered_.memory_bytes = options.memory_bytes.value_or(offered_.memory_bytes);
    offered_.custom = options.custom;
    actors::node_config config{local_host_name(),  reachable_name(options.listen.host),
                               offered_,           options.log,
                               std::move(devices), options.labels};
    if (options.metrics) {
      monitor_ = std::make_shared<node_monitor>();
      config.publish = [monitor = monitor_](actors::node_figures x) { monitor->publish(std::move(x)); };
    }
    config.version = TROUPE_VERSION;
    config.certificate_expires = [expires = expires_]() -> std::optional<std::int64_t> {
      const auto seconds = expires->load();
      return seconds > 0 ? std::optional{seconds} : std::nullopt;
    };
    node_ =
        actors::spawn_node(system_, std::move(config),
                           make_local_launcher(std::make_shared<const program_finder>(std::move(programs)), entry_));
    if (keys_.outer)
      key_watch_ = system_.spawn<key_watch>(keys_.outer, expires_);
    if (!is_loopback(options.listen.host))
      local_peers_ = system_.spawn(keep_local_peers);
  }

  ~impl() {
    {
      auto self = caf::scoped_actor{system_};
      for (const auto& each : {key_watch_, local_peers_})
        if (each)
          self->send_exit(each, caf::exit_reason::user_shutdown);
      self->send_exit(node_, caf::exit_reason::user_shutdown);
      self->wait_for(node_);
    }
    node_ = nullptr;
  }

  /// Workers always connect over loopback, with this machine's keys. A node that does not listen there opens a second
  /// port for them.
  expected<void> open(const node_options& options) {
    const auto& listen = options.listen;
    const auto& metrics = options.metrics;
    if (!is_loopback(listen.host)) {
      TROUPE_TRY(auto inner, publish(node_, {"127.0.0.1", 0}, keys_.inner));
      entry_->open({"127.0.0.1", inner});
    }
    if (metrics) {
      if (auto listens = monitor_->listen(*metrics); !listens)
        return fail(listens.error().code, "--metrics: " + listens.error().message);
    }
    TROUPE_TRY(auto port, publish(node_, listen, keys_.outer));
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

  static std::unique_ptr<caf::actor_system_config> make_config(const std::optional<tls_files>& keys,
                                                               bool has_local_peers_only) {
    auto config = std::make_unique<caf::actor_system_config>();
    config->set("caf.scheduler.policy", "sharing");
    config->set("caf.scheduler.max-threads", 2);
    secure(*config, keys);
    if (has_local_peers_only)
      keep_silent_connections(*config);
    return config;
  }

  node_keys keys_;
  std::unique_ptr<caf::actor_system_config> config_;
  caf::actor_system system_;
  std::shared_ptr<worker_entry> entry_;
  const std::shared_ptr<certificate_expiry> expires_ = std::make_shared<certificate_expiry>(0);
  actors::node_actor node_;
  caf::actor key_watch_;
  caf::actor local_peers_;
  /// Null without an endpoint for metrics.
  std::shared_ptr<node_monitor> monitor_;
  endpoint address_;
  resources offered_;
  std::shared_ptr<std::atomic<bool>> drained_ = std::make_shared<std::atomic<bool>>(false);
};

expected<node_host> node_host::start(const node_options& options) {
  TROUPE_TRY(validate_names(options.labels, {.custom = options.custom}));
  TROUPE_TRY(auto keys, node_keys::find(options));
  TROUPE_TRY(auto programs, find_programs(options));
  TROUPE_TRY(auto devices, gpus_to_offer(options.gpus));
  init_meta_objects();
  auto state = std::make_unique<impl>(options, std::move(keys), std::move(programs), std::move(devices));
  TROUPE_TRY(state->open(options));
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

std::optional<endpoint> node_host::metrics_address() const {
  return impl_->monitor_ ? std::optional{impl_->monitor_->address()} : std::nullopt;
}

const resources& node_host::offered() const noexcept {
  return impl_->offered_;
}

} // namespace troupe::runtime

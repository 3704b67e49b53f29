#include <troupe/serving/remote_replicas.hpp>

#include "remote/remote_predictor.hpp"
#include "remote/replica_links.hpp"
#include "remote/replica_nodes.hpp"
#include "remote/replica_run.hpp"

#include <troupe/actor_system.hpp>
#include <troupe/runtime/nodes.hpp>
#include <troupe/serialization/files/temporary_directory.hpp>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::serving {

using namespace std::chrono_literals;

namespace {

/// How long a model waits for a process that has no copy of it.
constexpr auto patience = 10s;
/// How long it waits for any process.
constexpr auto process_limit = 30s;
constexpr auto link_poll_interval = 50ms;
constexpr std::uint32_t most_replicas = 256;

void print(std::string_view line) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}

/// The nodes that replicas start on.
expected<std::vector<std::string>> find_nodes(const remote_config& config) {
  if (!config.cluster.discover.is_set())
    return config.cluster.nodes;
  TROUPE_TRY(const auto addresses, runtime::addresses_of(config.cluster));
  return nodes_for_replicas(runtime::ask_nodes(addresses, config.cluster),
                            {config.node_labels, config.resources_per_replica});
}

/// An actor system that is made and destroyed in one thread, whichever threads make and destroy this: CAF's destructor
/// waits until the thread of its constructor has let go of its logger.
class own_system {
 public:
  explicit own_system(caf::actor_system_config& config) {
    std::promise<caf::actor_system*> made;
    auto answer = made.get_future();
    thread_ = std::jthread{[&config, made = std::move(made)](const std::stop_token& stop) mutable {
      std::optional<caf::actor_system> system;
      try {
        system.emplace(config);
        made.set_value(&*system);
      } catch (...) {
        made.set_exception(std::current_exception());
        return;
      }
      auto mutex = std::mutex{};
      auto lock = std::unique_lock{mutex};
      std::condition_variable_any{}.wait(lock, stop, [] { return false; });
    }};
    system_ = answer.get();
  }

  [[nodiscard]] caf::actor_system& get() noexcept { return *system_; }

 private:
  caf::actor_system* system_ = nullptr;
  std::jthread thread_;
};

} // namespace

class remote_replicas::impl {
 public:
  impl(const function& replica, remote_config config) : replica_(replica), config_(std::move(config)) {
    if (!config_.notice)
      config_.notice = print;
  }

  ~impl() { stop(); }

  expected<void> start() {
    if (config_.replicas < 1 || config_.replicas > most_replicas)
      return fail(errc::invalid_argument, fmt::format("replicas must be 1 to {}", most_replicas));
    const auto deadline = std::chrono::steady_clock::now() + config_.start_timeout;
    {
      const auto lock = std::lock_guard{mutex_};
      if (is_stopped_ || place_)
        return fail(errc::stopped, "replicas start once, and not after a stop");
      TROUPE_TRY(prepare());
    }
    return await_first(deadline);
  }

  [[nodiscard]] std::function<expected<served_model>(const serialization::checkpoint&)> load() const {
    const auto route = config_.cluster.is_embedded() ? checkpoint_route::path : checkpoint_route::files;
    return [links = links_, route](const serialization::checkpoint& source) {
      return load_remotely(*links, source.directory(), route);
    };
  }

  void stop() {
    const auto lock = std::lock_guard{mutex_};
    if (std::exchange(is_stopped_, true))
      return;
    links_->close();
    for (auto& each : runs_)
      each->stop();
    runs_.clear();
    place_.reset();
    system_.reset();
    scratch_.reset();
  }

 private:
  expected<void> prepare() {
    TROUPE_TRY(find_nodes(config_));
    TROUPE_TRY(auto directory, serialization::temporary_directory::make("troupe-replicas"));
    scratch_.emplace(std::move(directory));
    init_meta_objects();
    TROUPE_TRY(troupe::prepare(system_config_, config_.cluster));
    system_.emplace(system_config_);
    place_.emplace(replica_place{system_->get(), replica_, config_, [this] { return find_nodes(config_); },
                                 scratch_->path(), *links_,
                                 [this](const std::string& line) {
                                   const auto lock = std::lock_guard{notice_mutex_};
                                   config_.notice(line);
                                 }});
    try {
      for (std::uint32_t i = 0; i < config_.replicas; ++i)
        runs_.push_back(std::make_unique<replica_run>(*place_, i));
    } catch (const std::system_error& x) {
      return fail(errc::unsatisfiable, fmt::format("no thread for a replica: {}", x.what()));
    }
    return {};
  }

  /// Until a process is there, or none can be started.
  expected<void> await_first(std::chrono::steady_clock::time_point deadline) {
    for (;;) {
      const auto now = std::chrono::steady_clock::now();
      if (links_->await_first(std::min(deadline, now + link_poll_interval)))
        return {};
      const auto lock = std::lock_guard{mutex_};
      if (is_stopped_)
        return fail(errc::stopped, "stopped before a replica was there");
      if (std::ranges::all_of(runs_, [](const auto& x) { return x->trouble().code != errc::none; }))
        return tl::unexpected{runs_.front()->trouble()};
      if (now >= deadline)
        return fail(errc::timed_out,
                    fmt::format("no replica's process has connected within {:.0f} s: can the nodes reach this machine?",
                                std::chrono::duration<double>{config_.start_timeout}.count()));
    }
  }

  const function replica_;
  remote_config config_;
  std::mutex notice_mutex_;
  /// Models that were loaded keep it, too.
  const std::shared_ptr<replica_links> links_ = std::make_shared<replica_links>(patience, process_limit);
  std::mutex mutex_;
  bool is_stopped_ = false;
  // In the order in which each needs those before it.
  std::optional<serialization::temporary_directory> scratch_;
  caf::actor_system_config system_config_;
  std::optional<own_system> system_;
  std::optional<replica_place> place_;
  std::vector<std::unique_ptr<replica_run>> runs_;
};

remote_replicas::remote_replicas(const function& replica, remote_config config)
    : impl_(std::make_unique<impl>(replica, std::move(config))) {}

remote_replicas::~remote_replicas() = default;

expected<void> remote_replicas::start() {
  return impl_->start();
}

std::function<expected<served_model>(const serialization::checkpoint&)> remote_replicas::load() {
  return impl_->load();
}

void remote_replicas::stop() {
  impl_->stop();
}

} // namespace troupe::serving

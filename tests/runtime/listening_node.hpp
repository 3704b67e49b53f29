#pragma once

#include "net/connection.hpp"

#include <troupe/actor_system.hpp>
#include <troupe/actors/node.hpp>

#include <caf/all.hpp>
#include <caf/io/middleman.hpp>
#include <caf/io/network/multiplexer.hpp>
#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <string>

/// Actor systems over real sockets, in one process.
namespace troupe::runtime {

class system_host {
 public:
  explicit system_host(const std::optional<tls_files>& keys) : config_(make_config(keys)), system_(*config_) {}

  caf::actor_system& get() noexcept { return system_; }

 private:
  static std::unique_ptr<caf::actor_system_config> make_config(const std::optional<tls_files>& keys) {
    init_meta_objects();
    auto result = std::make_unique<caf::actor_system_config>();
    result->set("caf.scheduler.policy", "sharing");
    result->set("caf.scheduler.max-threads", 2);
    secure(*result, keys);
    return result;
  }

  std::unique_ptr<caf::actor_system_config> config_;
  caf::actor_system system_;
};

class idle_launcher : public actors::process_launcher {
 public:
  std::function<expected<actors::found_program>()> search(const open_run&) override {
    return [] { return expected<actors::found_program>{actors::found_program{"/none"}}; };
  }
  void open(const run_id&, const actors::found_program&) override {}
  void start(const actors::launch_request&) override {}
  void kill(const run_id&) override {}
  void kill(const run_id&, worker_id) override {}
  expected<actors::process_sample> sample(const run_id&, worker_id) override { return actors::process_sample{}; }
  expected<actors::process_sample> sample_node() override { return actors::process_sample{}; }
  void close(const run_id&) override {}
  void end_group(const std::string&) override {}
  std::map<std::string, std::size_t> end_waiting_but(const std::string&) override { return {}; }
};

/// A node that listens on loopback in its own actor system.
class listening_node {
 public:
  explicit listening_node(const std::optional<tls_files>& keys, const std::string& host = "here",
                          key_source::log_function log = {})
      : host_(keys), node_(actors::spawn_node(host_.get(), {host, "127.0.0.1", {4, 0}, {}}, [](const auto&) {
          return std::make_unique<idle_launcher>();
        })) {
    std::shared_ptr<key_source> source;
    if (keys) {
      auto made = key_source::make(*keys, std::move(log));
      REQUIRE_MESSAGE(made, made.error().message);
      source = std::move(*made);
    }
    auto port = publish(node_, {"127.0.0.1", 0}, std::move(source));
    REQUIRE(port);
    where = {"127.0.0.1", *port};
  }
  ~listening_node() { caf::anon_send_exit(node_, caf::exit_reason::user_shutdown); }

  caf::io::network::multiplexer& multiplexer() { return host_.get().middleman().backend(); }

  endpoint where;

 private:
  system_host host_;
  actors::node_actor node_;
};

} // namespace troupe::runtime

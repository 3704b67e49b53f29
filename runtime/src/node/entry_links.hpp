#pragma once

#include "net/keys/key_source.hpp"
#include "node/membership.hpp"

#include <troupe/config.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace troupe::runtime {

/// Keeps a node's connections to the entry nodes that it has joined: beats once a second, and dials again when one is
/// lost. A thread for each, and one that looks for silent members. The destructor says that the node ends, where it can
/// within half a second.
class entry_links {
 public:
  static constexpr auto beat_interval = std::chrono::seconds{1};

  /// Null keys mean unencrypted.
  entry_links(std::shared_ptr<membership> members, const std::vector<endpoint>& entries,
              std::shared_ptr<key_source> keys);
  entry_links(const entry_links&) = delete;
  entry_links& operator=(const entry_links&) = delete;
  ~entry_links();

 private:
  void join(const endpoint& entry, const std::stop_token& stop);

  std::shared_ptr<membership> members_;
  std::shared_ptr<key_source> keys_;
  std::vector<std::jthread> threads_;
};

} // namespace troupe::runtime

#pragma once

#include "jobs/job_host.hpp"

#include <troupe/runtime/members.hpp>

#include <map>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

namespace troupe::runtime {

/// Tells the other keepers of a node's jobs once a second what it knows of them, and takes what they know. A thread for
/// each other keeper, as long as there are jobs that have it.
class keeper_links {
 public:
  /// `jobs` outlives it.
  keeper_links(job_host& jobs, member_access how);
  keeper_links(const keeper_links&) = delete;
  keeper_links& operator=(const keeper_links&) = delete;
  ~keeper_links();

 private:
  void look(const std::stop_token& stop);
  void talk(const std::string& address, const std::stop_token& stop);

  job_host& jobs_;
  const member_access how_;
  std::map<std::string, std::jthread> peers_;
  std::jthread looks_;
};

} // namespace troupe::runtime

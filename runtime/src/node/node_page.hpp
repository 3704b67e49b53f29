#pragma once

#include "jobs/job_host.hpp"
#include "node/membership.hpp"

#include <troupe/error.hpp>
#include <troupe/runtime/dashboard.hpp>
#include <troupe/runtime/members.hpp>

#include <chrono>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

/// What the page of a node shows: the cluster's nodes, the jobs that this node knows, and the runs of those that it
/// has hosted. Thread-safe; may ask entry nodes, who must answer in time.
class node_page {
 public:
  /// Both outlive it. `how` is for questions to entry nodes, where this node may ask them: as a driver.
  node_page(std::string address, membership& members, const job_host& jobs, std::optional<member_access> how)
      : address_(std::move(address)), members_(members), jobs_(jobs), how_(std::move(how)) {}

  /// {"node": ADDRESS, "nodes": [NODE], "jobs": [JOB], "note": TEXT}, where NODE is as `to_json` says, and JOB has
  /// "name", "state", "node", "program", "submitter", "submitted" (milliseconds since 1970) and "reason". The note says
  /// what is missing.
  [[nodiscard]] nlohmann::ordered_json cluster();

  /// The directories of the runs, the one that began last first.
  [[nodiscard]] std::vector<std::filesystem::path> runs() const;

 private:
  using clock = std::chrono::steady_clock;

  [[nodiscard]] nlohmann::ordered_json describe_cluster();

  std::string address_;
  membership& members_;
  const job_host& jobs_;
  std::optional<member_access> how_;
  std::mutex mutex_;
  nlohmann::ordered_json last_;
  clock::time_point asked_{};
};

} // namespace troupe::runtime

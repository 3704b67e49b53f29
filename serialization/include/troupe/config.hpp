#pragma once

#include <troupe/config/checkpoint.hpp>
#include <troupe/config/cluster.hpp>
#include <troupe/config/failure.hpp>
#include <troupe/config/monitoring.hpp>
#include <troupe/config/run.hpp>
#include <troupe/config/scaling.hpp>
#include <troupe/duration.hpp>
#include <troupe/endpoint.hpp>
#include <troupe/error.hpp>
#include <troupe/load_options.hpp>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

/// A run's configuration: plain aggregates, validated as a whole before anything starts. The settings of each part have
/// a header of their own, without JSON.
namespace troupe {

/// The complete configuration of a trainer.
struct trainer_config {
  scaling_config scaling = {};
  run_config run = {};
  failure_config failure = {};
  checkpoint_config checkpoint = {};
  cluster_config cluster = {};
  monitoring_config monitoring = {};
  /// Passed to the training function as `ctx.config()`. Part of the run's identity: a resumed run must have the same.
  nlohmann::json config = nlohmann::json::object();
  /// Passed as `ctx.options()`: settings that do not affect the result, such as paths and intervals. May change when a
  /// run is resumed.
  nlohmann::json options = nlohmann::json::object();
  /// A checkpoint's directory, or a run's for its latest, whose state a new run starts with; empty for none. A mirror's
  /// `rclone:REMOTE:PATH/NAME` is fetched into the run's directory.
  std::filesystem::path load_checkpoint = {};
  /// How that state maps to this run's.
  load_options load = {};
  /// The worker processes' command-line arguments after the program's name.
  std::vector<std::string> arguments = {};
};

/// Rejects every invalid configuration before anything starts.
[[nodiscard]] expected<void> validate(const trainer_config& config);

} // namespace troupe

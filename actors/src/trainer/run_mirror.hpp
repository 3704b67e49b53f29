#pragma once

#include "trainer/severity.hpp"
#include <troupe/actors/checkpoint_holds.hpp>
#include <troupe/actors/decisions/mirror_owner.hpp>
#include <troupe/actors/mirror_storage.hpp>
#include <troupe/error.hpp>
#include <troupe/result.hpp>
#include <troupe/serialization/checkpoint/retention.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace troupe::actors {

/// Copies a run's checkpoints and other files to its mirror, as `mirror_queue` decides, in a thread of low priority.
/// Nobody waits for it but `finish`. First it claims the place; once a later driver has claimed it, it changes nothing
/// there any more. Callable from any thread.
class run_mirror {
 public:
  /// A line for events.jsonl.
  struct event {
    std::chrono::system_clock::time_point when;
    nlohmann::ordered_json what;
  };

  struct settings {
    /// The run's place at the mirror, for people.
    std::string place;
    /// Opens it. Called in its thread, so that child processes have its priority.
    std::function<expected<std::unique_ptr<mirror_storage>>()> open;
    /// The run's directory.
    std::filesystem::path root;
    serialization::retention_policy keep = {};
    std::shared_ptr<checkpoint_holds> holds;
    /// Called in its thread, with what users should know; must not block.
    std::function<void(severity, std::string)> tell;
    /// This driver. Its claim is one that is known to have been there; 0 if none is.
    mirror_owner owner = {};
    /// The step that this driver begins from: it writes the metrics of later ones.
    step_id began_from = {};
  };

  explicit run_mirror(settings how);
  run_mirror(const run_mirror&) = delete;
  run_mirror& operator=(const run_mirror&) = delete;
  /// Gives up what is under way. A device that does not answer keeps its thread for at most five seconds; after that
  /// the thread is left to itself, and calls nothing any more.
  ~run_mirror();

  /// The run's directory has this checkpoint.
  void on_saved(step_id step);
  /// Waits until the mirror has all that it was told of, or is another driver's, at most for `longest`, or until
  /// `hurry` is requested.
  void finish(std::chrono::milliseconds longest, const std::stop_token& hurry);
  /// The run's other files have changed.
  void on_records_changed();

  [[nodiscard]] std::vector<event> take_events();
  /// Its reason has the code `errc::superseded` once the mirror is another driver's.
  [[nodiscard]] mirror_summary summary() const;

 private:
  class work;
  std::shared_ptr<work> work_;
  std::thread thread_;
};

} // namespace troupe::actors

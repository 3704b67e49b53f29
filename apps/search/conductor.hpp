#pragma once

#include <search/record.hpp>

#include <troupe/app.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>

#include <caf/fwd.hpp>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>

namespace search {

/// How a search ended.
enum class search_status { completed, stopped, failed };

struct search_result {
  search_status status = search_status::failed;
  /// Why it failed.
  troupe::error reason;
};

/// What the actor of a search needs.
struct search_config {
  /// What all trials have in common; `run.storage_path` is the search's directory, in which each trial has its run.
  troupe::trainer_config base;
  /// At most so many trials train at the same time; at least 1.
  std::size_t at_once = 1;
  /// Keeps the checkpoints of trials that go no further.
  bool keep_all = false;
  /// Takes a line about the search, in the actor's thread.
  std::function<void(const std::string& line)> report;
  /// Called once, at the end, in the actor's thread.
  std::function<void(const search_result&)> ended;
};

/// The name of a trial's run.
[[nodiscard]] std::string name_of(std::size_t trial);

/// Spawns the actor of a search. It spawns a trainer for each trial at each rung, in the same actor system, and lets
/// `record` decide. It takes `troupe::stop_request`: the trials stop with a checkpoint, and the search ends. `record`
/// outlives it; nobody else uses it before `ended` is called.
[[nodiscard]] caf::actor spawn_conductor(caf::actor_system& system, troupe::function train, search_record& record,
                                         search_config config);

} // namespace search

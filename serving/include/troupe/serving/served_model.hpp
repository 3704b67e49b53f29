#pragma once

#include <troupe/error.hpp>
#include <troupe/inference/loaded_model.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <variant>

namespace troupe::serving {

/// Its inputs have fixed shapes: requests are checked against them.
using served_model = inference::loaded_model;

/// What a server does with a path that does not exist.
enum class absent_run : std::uint8_t {
  refuse,
  /// It waits for a run of this directory, and for its first checkpoint.
  wait,
};

/// Models that checkpoints contain.
struct checkpoint_models {
  /// One checkpoint, or the directory of a run, whose newest checkpoint is served and followed. The run may have none
  /// yet.
  std::filesystem::path path;
  /// Called once for each replica, in its thread, which also predicts and destroys the model. Several threads may call
  /// it at once. The checkpoint has been verified.
  std::function<expected<served_model>(const serialization::checkpoint& source)> load;
  /// How often a run's directory is looked through for a newer checkpoint; 0: only when a reload is requested.
  std::chrono::milliseconds poll_every{1000};
  absent_run absent = absent_run::refuse;
};

/// A model that the program makes by itself.
struct program_model {
  /// As `checkpoint_models::load`. A reload calls it again.
  std::function<expected<served_model>()> make;
};

using model_origin = std::variant<checkpoint_models, program_model>;

} // namespace troupe::serving

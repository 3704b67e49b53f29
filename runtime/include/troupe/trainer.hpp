#pragma once

#include <troupe/app.hpp>
#include <troupe/config.hpp>
#include <troupe/result.hpp>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace troupe {

/// What to call while a run goes on, one at a time, from a thread of the trainer's. Empty ones are skipped, where
/// nothing else is said.
struct run_callbacks {
  std::function<void(const run_started&)> started;
  std::function<void(const run_progress&)> progress;
  std::function<void(const checkpoint_saved&)> saved;
  std::function<void(const checkpoint_skipped&)> skipped;
  /// Also said by a notice.
  std::function<void(const checkpoint_failed&)> failed;
  /// Another group of workers goes on: members were lost, came or went.
  std::function<void(const generation_record&)> regrouped;
  /// When empty, they go to standard error, warnings with "warning: " in front.
  std::function<void(const run_notice&)> notice;
  /// A line that a worker wrote. When empty, it goes to standard error with "[rank N] " in front.
  std::function<void(std::uint32_t rank, const std::string& line)> output;
};

/// A run and its owner: the handle of programs that are no actor systems themselves. (Those spawn a trainer actor: see
/// <troupe/actor_system.hpp>.)
class trainer {
 public:
  /// `train` is one of the app's functions. Throws `exception` for another.
  trainer(const app& program, const function& train, trainer_config config);
  ~trainer();
  trainer(const trainer&) = delete;
  trainer& operator=(const trainer&) = delete;

  void set_callbacks(run_callbacks callbacks);

  /// Begins with the state in a checkpoint of any run, unless this run has one of its own to resume. Its tensors must
  /// be those that the training function tracks, but for what `options` allow.
  void load_checkpoint(std::filesystem::path checkpoint, load_options options = {});

  /// Trains, and returns when nothing of the run is left. While it runs, SIGINT and SIGTERM ask for a stop: the first
  /// finishes the step and takes a checkpoint, the second stops at once. Can be called again for another attempt.
  [[nodiscard]] run_result fit();

  /// As `fit`, but throws a failed run's reason as an `exception`. Returns the result of a completed run, and of one
  /// that was stopped as asked: `run_result::status` tells them apart.
  run_result fit_or_throw();

  /// Asks for the end of the run. From any thread; nothing happens while no `fit` is under way.
  void stop();

  /// Asks for a checkpoint after the current step. From any thread.
  void save_checkpoint();

  /// Asks for another number of workers, from 1 to the number of shards. From any thread.
  void resize(std::uint32_t workers);

  /// Has the run hold after the current step, until `resume`. From any thread.
  void pause();
  void resume();

  /// What the program's `main` is to return: the result's exit code, or 128 + the signal that stopped the run.
  [[nodiscard]] int exit_code() const noexcept;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe

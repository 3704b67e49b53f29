#pragma once

#include <troupe/app.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>
#include <troupe/result.hpp>

#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>

namespace troupe {

/// Called while a run is in progress, one at a time, on a thread of the trainer. Empty callbacks are skipped unless
/// noted.
struct run_callbacks {
  std::function<void(const run_started&)> started;
  std::function<void(const run_progress&)> progress;
  std::function<void(const checkpoint_saved&)> saved;
  std::function<void(const checkpoint_skipped&)> skipped;
  /// A notice reports it, too.
  std::function<void(const checkpoint_failed&)> failed;
  /// A new group of workers continues: members were lost, left or joined.
  std::function<void(const generation_record&)> regrouped;
  /// When empty, they go to standard error, warnings with "warning: " in front.
  std::function<void(const run_notice&)> notice;
  /// A line that a worker wrote. When empty, it goes to standard error with "[rank N] " in front.
  std::function<void(std::uint32_t rank, const std::string& line)> output;
};

/// Runs training and returns its result. For programs without an actor system of their own; others spawn a trainer
/// actor (<troupe/actor_system.hpp>).
class trainer {
 public:
  /// `train` is one of the app's functions. Throws `exception` for another.
  trainer(const app& program, const function& train, trainer_config config);
  ~trainer();
  trainer(const trainer&) = delete;
  trainer& operator=(const trainer&) = delete;

  void set_callbacks(run_callbacks callbacks);

  /// Starts from a checkpoint of any run, unless this run can resume from its own. The tensors must match those that
  /// the training function tracks, except as `options` allow.
  void load_checkpoint(std::filesystem::path checkpoint, load_options options = {});

  /// Trains, and returns when no process of the run is left. Meanwhile SIGINT and SIGTERM request a stop: the first
  /// finishes the step and takes a checkpoint, the second stops at once. Can be called again for another attempt.
  [[nodiscard]] run_result fit();

  /// From now on the processes of workers that are released wait for the next `run` or `fit`, which saves it their
  /// start: loading libraries, starting frameworks. It changes nothing else, neither results nor what happens when a
  /// worker is lost: a process is used again only for the same program with the same arguments and GPUs. Variables that
  /// the training function does not track, such as statics, are as the last run of the process left them. Does nothing
  /// if it has been called. Fails as `prepare` does, and if the workers' program cannot be opened.
  ///
  /// On a caf-node waiting processes have no resources leased: they end, and the user is told, when another run starts
  /// workers there. They end when the node is drained, and with the driver, too.
  [[nodiscard]] expected<void> start();

  /// Trains with this function of the app, as `fit`, after `start`. The n-th run since then, if not the first, is named
  /// NAME-n, so that the same program resumes the same runs. `config` may differ from the trainer's; its `cluster` is
  /// not used. Throws `exception` for a function that is not the app's.
  [[nodiscard]] run_result run(const function& train);
  [[nodiscard]] run_result run(const function& train, trainer_config config);

  /// Ends the processes that wait. Returns when none is left on this host; caf-nodes end theirs at once. The destructor
  /// does so, too.
  void shutdown();

  /// As `fit`, but throws a failed run's reason as an `exception`. Returns the result of a completed run, and of one
  /// that was stopped as asked: `run_result::status` tells them apart.
  run_result fit_or_throw();

  /// Requests a stop, as the first SIGINT does. From any thread; no effect outside `fit`.
  void stop();

  /// Requests a checkpoint after the current step. From any thread. The answer, which need not be waited for, is the
  /// checkpoint's directory once it is durable; without a run under way, if the checkpoint fails, and if the run ends
  /// without one, it is the reason. Do not wait in a callback, which holds up what the answer comes with.
  std::shared_future<expected<std::filesystem::path>> save_checkpoint();

  /// Requests another number of workers, from 1 to the number of shards. From any thread.
  void resize(std::uint32_t workers);

  /// Pauses the run after the current step, until `resume`. From any thread.
  void pause();
  void resume();

  /// What the program's `main` should return: the result's exit code, or 128 + the signal that stopped the run.
  [[nodiscard]] int exit_code() const noexcept;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe

#pragma once

#include <troupe/config.hpp>
#include <troupe/messages/worker.hpp>
#include <troupe/result.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace troupe::runtime {

/// Logs a run to an MLflow tracking server from a thread of its own: parameters, rank 0's metrics, the end. Points wait
/// in a bounded queue while the server does not answer, which is asked again after 0.5 s to 30 s. A resumed run goes on
/// with its run there, whose id is in `mlflow.json` in the run's directory, and what the server has is not sent again.
class mlflow_tracker {
 public:
  /// Patience with one connection or answer, and with all that is left at the end of the run.
  static constexpr auto patience = std::chrono::seconds{2};
  static constexpr auto patience_at_end = std::chrono::seconds{5};

  /// `tell` is called in the tracker's thread, until the destructor returns.
  mlflow_tracker(const trainer_config& config, std::function<void(bool is_warning, std::string)> tell);
  mlflow_tracker(const mlflow_tracker&) = delete;
  mlflow_tracker& operator=(const mlflow_tracker&) = delete;
  ~mlflow_tracker();

  // None of these waits.
  void on(const run_started& x);
  void on(const metrics_batch& batch);
  void on(const run_result& result);

  /// Waits until everything is delivered, for at most `patience_at_end` and one call. The destructor does so, too.
  void finish();

  /// Points that the server has taken, that wait, and that were dropped.
  struct figures {
    std::uint64_t taken = 0;
    std::uint64_t waiting = 0;
    std::uint64_t dropped = 0;
  };
  [[nodiscard]] figures so_far() const;

 private:
  class impl;
  /// The thread has it, too: a name server may keep that for longer than the destructor waits.
  std::shared_ptr<impl> impl_;
};

} // namespace troupe::runtime

#pragma once

#include <charlm/corpus.hpp>
#include <charlm/curve.hpp>
#include <charlm/model.hpp>

#include <troupe/error.hpp>
#include <troupe/result.hpp>
#include <troupe/trainer.hpp>

#include <chrono>
#include <filesystem>
#include <mutex>
#include <vector>

namespace charlm {

/// Displays a run: a progress line on a terminal, plain lines elsewhere, and the losses at the end.
class run_view {
 public:
  explicit run_view(bool quiet);

  /// The callbacks refer to this object, which must outlive the trainer's calls.
  [[nodiscard]] troupe::run_callbacks callbacks();

  /// Shows a line without disturbing the progress line. Callable from any thread.
  void line(const std::string& text);

  /// Ends the progress line.
  void finish(const troupe::run_result& result);

  /// Draws the loss curve and compares the held-out loss with simpler models of the same text.
  void show_losses(const troupe::run_result& result, const corpus& text) const;

 private:
  void started(const troupe::run_started& event);
  void progress(const troupe::run_progress& event);
  void clear_line();

  bool quiet_;
  bool terminal_;
  bool line_open_ = false;
  std::mutex mutex_;
  std::uint64_t last_step_ = 0;
  std::vector<curve_point> losses_;
  std::chrono::steady_clock::time_point last_plain_line_{};
};

/// Loads the model of a charlm checkpoint. Fails as `checkpoint` does, and with `errc::mismatch` for another shape.
[[nodiscard]] troupe::expected<model> load_model(const model_shape& shape, const std::filesystem::path& checkpoint);

} // namespace charlm

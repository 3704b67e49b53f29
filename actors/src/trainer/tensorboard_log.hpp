#pragma once

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/worker.hpp>
#include <troupe/result.hpp>
#include <troupe/serialization/interchange/tensorboard.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <filesystem>
#include <string>

namespace troupe::actors {

/// The TensorBoard event files of one run, in a directory of their own: rank 0's metrics by their names, and where the
/// time of each rank's steps went. Each writer has a file of its own, which begins by declaring void what earlier ones
/// say of its steps, so that a resumed run shows no step twice, and a torn end of an earlier file harms nothing. Used
/// by one thread.
class tensorboard_log {
 public:
  /// Records that the disk has not taken wait up to this size; more are dropped and counted.
  static constexpr std::size_t most_waiting_bytes = std::size_t{4} << 20;

  /// Opens nothing yet. Reports of steps before `first` are ignored.
  tensorboard_log(std::filesystem::path directory, step_id first) : directory_(std::move(directory)), first_(first) {}

  /// Appends the batch's rows. Fails with `errc::io_error` while the disk does not take them; they go with the next.
  [[nodiscard]] expected<void> append(const metrics_batch& batch, serialization::wall_time now);
  /// How much the run got ahead, at its end.
  [[nodiscard]] expected<void> append(const run_result& result, serialization::wall_time now);

  /// How many records were dropped since this was asked last.
  [[nodiscard]] std::uint64_t take_dropped() noexcept;

 private:
  void add(const std::string& record);
  [[nodiscard]] expected<void> open(serialization::wall_time now);
  [[nodiscard]] expected<void> write_waiting(serialization::wall_time now);

  std::filesystem::path directory_;
  step_id first_;
  /// Whether it has declared earlier records of its steps void.
  bool has_begun_ = false;
  std::filesystem::path path_;
  collectives::unique_fd file_;
  std::string waiting_;
  std::uint64_t dropped_ = 0;
};

} // namespace troupe::actors

#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

/// What a run's directory says of it, in one structure of bounded size, for pages and pictures.
namespace troupe::runtime {

/// A point of a curve that stands for one or several steps.
struct curve_point {
  double step = 0;
  /// Their mean; not a number where no value is finite.
  double value = 0;
  double least = 0;
  double most = 0;
};

struct named_curve {
  std::string name;
  std::vector<curve_point> points;
};

/// Follows the files of a run. Used by one thread at a time.
class story_reader {
 public:
  explicit story_reader(std::filesystem::path run);
  story_reader(const story_reader&) = delete;
  story_reader& operator=(const story_reader&) = delete;
  ~story_reader();

  /// Takes in what the files have got since the last call. Of files of more than 64 MiB it reads a part.
  void read();

  /// Rank 0's metrics, at most 48 of them, "steps/s" first.
  [[nodiscard]] std::vector<named_curve> curves() const;

  /// The story with these keys: `about` (from run.json), `curves`, `ranks` (where their time went), `late` (who
  /// computes longest), `events` (the last 300, without pauses of other ranks than the one that waited longest),
  /// `counts`, `failures`, `checkpoints`, `goodput`, `logs`, `result` (from result.json), `sampled` (files of which
  /// only a part was read).
  [[nodiscard]] nlohmann::ordered_json to_json() const;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

/// The status of a run: its driver's answer, which it gets two seconds for, or else what the files tell.
[[nodiscard]] nlohmann::ordered_json status_of_run(const std::filesystem::path& run);

} // namespace troupe::runtime

#pragma once

#include "trainer/mirrored_start.hpp"
#include "trainer/run_mirror.hpp"
#include <troupe/actors/checkpoint_holds.hpp>
#include <troupe/actors/run_directory.hpp>
#include <troupe/actors/trainer.hpp>
#include <troupe/error.hpp>
#include <troupe/result.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <vector>

namespace troupe {
struct trainer_config;
}

namespace troupe::actors {

/// A run's mirror over the run's life: before it begins, while it trains, and at its end. Without a configured mirror
/// all of its functions do nothing. Used by the thread of the run's files, which it may block.
class run_mirroring {
 public:
  /// `config` and `services` must outlive this. `tell` is called in any thread, with what users should know.
  run_mirroring(const trainer_config& config, const trainer_services& services, std::stop_token hurry,
                std::function<void(severity, std::string)> tell);

  // Before the run begins.

  /// Fails if there can be no mirror at the place that is configured.
  [[nodiscard]] expected<void> open();
  /// What the run.json there says; not a JSON object if there is none.
  [[nodiscard]] expected<nlohmann::json> described() const;
  /// Moves an earlier run aside, or refuses, as `resume` says.
  [[nodiscard]] expected<void> prepare(const run_directory& directory);
  /// What the run begins with, or begins again with.
  [[nodiscard]] expected<starting_state> find_start_in(const run_directory& directory, const run_identity& identity);
  /// Whether the mirror takes files. A run that has trained before is only warned.
  [[nodiscard]] expected<void> try_out(const run_directory& directory, const starting_state& state);

  // While it trains.

  /// Begins to copy. The result takes the steps of new checkpoints; it is empty without a mirror.
  [[nodiscard]] std::weak_ptr<run_mirror> begin(const run_id& run, const run_directory& directory,
                                                const starting_state& state);
  /// The checkpoints that are being copied.
  [[nodiscard]] std::shared_ptr<const checkpoint_holds> holds() const { return holds_; }
  [[nodiscard]] std::vector<run_mirror::event> take_events();

  // At its end, when nothing writes checkpoints any more.

  /// Waits for the last checkpoint.
  [[nodiscard]] mirror_summary finish();
  /// Waits for the run's files, which are complete now.
  void finish_records();
  /// Gives up what is under way.
  void leave();

 private:
  [[nodiscard]] bool is_wanted() const { return !config_->checkpoint.mirror.to.empty(); }
  [[nodiscard]] std::string place() const;
  [[nodiscard]] expected<std::unique_ptr<mirror_storage>> open_place(const std::string& place) const;
  [[nodiscard]] start_sources sources() const;
  [[nodiscard]] serialization::retention_policy retention() const;

  const trainer_config* config_;
  const trainer_services* services_;
  std::stop_token hurry_;
  std::function<void(severity, std::string)> tell_;
  /// Only until the run begins: after that, a thread has its own.
  std::unique_ptr<mirror_storage> storage_;
  std::shared_ptr<checkpoint_holds> holds_ = std::make_shared<checkpoint_holds>();
  std::shared_ptr<run_mirror> running_;
  std::filesystem::path checkpoints_;
  /// The claim at a mirror that was moved aside: they only grow.
  std::uint64_t earlier_claim_ = 0;
  /// Until when the run's end waits; set by `finish`.
  std::chrono::steady_clock::time_point deadline_;
};

} // namespace troupe::actors

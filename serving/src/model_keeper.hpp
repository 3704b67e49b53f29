#pragma once

#include "decisions/reload_choice.hpp"
#include "dispatcher.hpp"
#include "metrics.hpp"
#include "replica_group.hpp"

#include <troupe/serving/server.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

namespace troupe::serving {

/// Owns the model that is served, and replaces it: finds a newer checkpoint, verifies and loads it beside the model
/// that is served, and lets its replicas take over between two batches. Thread-safe, except for `start`.
class model_keeper {
 public:
  using notice_function = std::function<void(const std::string& line)>;

  /// `queue` and `counts` outlive it.
  model_keeper(const server_config& config, model_origin origin, dispatcher& queue, metrics& counts,
               notice_function notice);
  ~model_keeper();
  model_keeper(const model_keeper&) = delete;
  model_keeper& operator=(const model_keeper&) = delete;

  /// Loads the first model, and watches for newer ones. As `server::start`.
  [[nodiscard]] expected<void> start();

  /// As `server::reload`.
  [[nodiscard]] expected<reload_report> reload();

  /// As `server::check_for_newer`.
  void check_for_newer();

  /// Ends the watch. A model that is being loaded is waited for.
  void stop();

 private:
  enum class watch_state : std::uint8_t { waiting, asked, stopped };

  [[nodiscard]] expected<reload_report> replace(reload_reach reach);
  [[nodiscard]] expected<reload_report> take_newest(const checkpoint_models& models, reload_reach reach);
  [[nodiscard]] expected<void> take_checkpoint(const checkpoint_models& models, const std::filesystem::path& path);
  [[nodiscard]] expected<void> take_over(replica_group::make_model make, model_face face);
  [[nodiscard]] expected<void> check_same_face(const model_face& face) const;
  [[nodiscard]] reload_report report(bool changed) const;
  void refuse(const std::filesystem::path& path, const error& reason);
  void watch(std::chrono::milliseconds every);

  std::string name_;
  std::uint32_t replicas_;
  std::uint64_t max_rows_;
  model_origin origin_;
  dispatcher& queue_;
  metrics& counts_;
  notice_function notice_;

  /// Held while a model is loaded.
  std::mutex loading_;
  /// The directory whose checkpoints are followed; empty for one checkpoint.
  std::filesystem::path followed_;
  std::unique_ptr<replica_group> group_;
  std::uint64_t last_version_ = 0;
  /// Damaged checkpoints, which are not tried again without being asked for, and all that an operator has heard of.
  std::set<std::filesystem::path> refused_;
  std::set<std::filesystem::path> reported_;

  std::mutex watch_mutex_;
  std::condition_variable watch_changed_;
  watch_state watch_state_ = watch_state::waiting;
  std::thread watching_;
};

} // namespace troupe::serving

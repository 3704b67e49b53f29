#pragma once

#include "decisions/reload_choice.hpp"
#include "dispatcher.hpp"
#include "metrics.hpp"
#include "replica_group.hpp"

#include <troupe/serving/server.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace troupe::serving {

/// Owns the model that is served, and replaces it: finds a newer checkpoint, verifies and loads it beside the model
/// that is served, and lets its replicas take over between two batches. One thread does that; requests for a reload
/// that come meanwhile share the next. Thread-safe, except for `start`.
class model_keeper {
 public:
  using notice_function = std::function<void(const std::string& line)>;

  /// `queue` and `counts` outlive it. `notice` does not throw.
  model_keeper(const server_config& config, model_origin origin, dispatcher& queue, metrics& counts,
               notice_function notice);
  /// Waits for a model that is being loaded, and for batches that are being predicted.
  ~model_keeper();
  model_keeper(const model_keeper&) = delete;
  model_keeper& operator=(const model_keeper&) = delete;

  /// Loads the first model, and watches for newer ones. As `server::start`; fails with `errc::stopped` after `stop`.
  [[nodiscard]] expected<void> start();

  /// As `server::reload`; fails with `errc::timed_out` at the deadline, and the reload goes on.
  [[nodiscard]] expected<reload_report> reload(time_point deadline);

  /// As `server::request_reload`.
  void request_reload();

  /// As `server::check_for_newer`.
  void check_for_newer();

  /// Loads no more. Lets those go who wait for a reload, and does not wait for a model that is being loaded.
  void stop();

 private:
  /// A reload that waits, or is under way, and its outcome.
  struct job {
    reload_reach reach = reload_reach::newer;
    /// Whether the outcome is told to the operator.
    bool is_told = false;
    std::optional<expected<reload_report>> outcome;
  };
  using job_ptr = std::shared_ptr<job>;

  [[nodiscard]] job_ptr add_job(reload_reach reach, bool is_told);
  [[nodiscard]] expected<reload_report> await(const job_ptr& wanted, time_point deadline);
  void work(std::chrono::milliseconds every) noexcept;
  [[nodiscard]] job_ptr next_job(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds every);
  void tell(const job& done) const;
  [[nodiscard]] expected<reload_report> replace_safely(reload_reach reach);
  [[nodiscard]] expected<reload_report> replace(reload_reach reach);
  [[nodiscard]] expected<reload_report> take_newest(const checkpoint_models& models, reload_reach reach);
  [[nodiscard]] expected<void> take_checkpoint(const checkpoint_models& models, const std::filesystem::path& path);
  [[nodiscard]] expected<void> take_over(replica_group::make_model make, model_face face);
  [[nodiscard]] expected<void> check_same_face(const model_face& face) const;
  [[nodiscard]] reload_report report(bool changed) const;
  void refuse(const std::filesystem::path& path, const error& reason);

  std::string name_;
  std::uint32_t replicas_;
  std::uint64_t max_rows_;
  model_origin origin_;
  dispatcher& queue_;
  metrics& counts_;
  notice_function notice_;

  /// Of the thread that loads.
  std::filesystem::path followed_;
  std::unique_ptr<replica_group> group_;
  std::uint64_t last_version_ = 0;
  refused_checkpoints refused_;
  /// What an operator has heard of the directory.
  std::string list_trouble_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> is_stopped_ = false;
  job_ptr waiting_;
  std::thread loading_;
};

} // namespace troupe::serving

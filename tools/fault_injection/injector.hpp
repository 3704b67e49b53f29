#pragma once

#include "load.hpp"
#include "pauses.hpp"
#include "scene.hpp"
#include "schedule.hpp"
#include "verdict.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace troupe::chaos {

/// Injects planned faults into a run and undoes them when they have lasted long enough.
class injector {
 public:
  using clock = std::chrono::steady_clock;

  /// `say` prints a line. `allow_all`: whether the last living worker may be hit.
  injector(scene& run, bool allow_all, std::function<void(const std::string&)> say)
      : run_(run), allow_all_(allow_all), say_(std::move(say)) {}

  /// Injects the fault. `record` has its time and step; the victims are added. False without an effect if there is no
  /// victim.
  [[nodiscard]] bool inject(const planned_fault& fault, injected_fault record);

  /// Undoes what is due, and follows faults whose effects come later. To be called all the time.
  void look();

  /// Undoes everything.
  void finish();

  /// No more drivers are started, because the run has been asked to stop.
  void keep_driver() noexcept { may_kill_driver_ = false; }

  /// Whether the driver was killed and the next one has not been started.
  [[nodiscard]] bool driver_is_gone() const noexcept { return driver_ == driver_state::gone; }
  /// Whether all faults have been undone.
  [[nodiscard]] bool idle() const noexcept { return undos_.empty(); }
  /// When a fault was last injected or undone.
  [[nodiscard]] clock::time_point last_change() const noexcept { return last_change_; }
  [[nodiscard]] const std::vector<injected_fault>& faults() const noexcept { return faults_; }
  /// When faults that last began, and when each was undone, of those that have been.
  [[nodiscard]] const std::vector<time_span>& lasting() const noexcept { return lasting_; }

 private:
  struct pending_undo {
    clock::time_point due;
    /// Returns whether it is done; if not, it is tried again.
    std::function<bool()> act;
    std::chrono::system_clock::time_point began;
  };
  enum class driver_state : std::uint8_t { sound, frozen, gone };
  enum class disk_state : std::uint8_t { sound, full, frozen };

  [[nodiscard]] bool hit();
  [[nodiscard]] bool hit_workers(std::size_t number_of_victims);
  [[nodiscard]] bool hit_node();
  [[nodiscard]] bool freeze_all_workers();
  [[nodiscard]] bool cut_data();
  [[nodiscard]] bool hit_all_nodes();
  [[nodiscard]] bool freeze_driver();
  [[nodiscard]] bool restart_driver();
  [[nodiscard]] bool fill_disk();
  [[nodiscard]] bool freeze_disk();
  [[nodiscard]] bool flood();
  [[nodiscard]] bool begin_cpu_storm();
  [[nodiscard]] bool leave_log_unread();

  void endanger_all(injected_fault& fault);
  void kill_sleeping_writer();
  void undo_until(clock::time_point now);
  /// After as long as the fault lasts.
  void undo_later(std::function<void()> act);
  /// From then on, until it is done.
  void undo_after(std::chrono::milliseconds least, std::function<bool()> act);
  void say_fault(const std::string& whom) const;

  scene& run_;
  bool allow_all_;
  std::function<void(const std::string&)> say_;
  /// The fault that is being injected, and its record.
  planned_fault fault_;
  injected_fault current_;
  std::vector<injected_fault> faults_;
  std::vector<pending_undo> undos_;
  std::vector<time_span> lasting_;
  clock::time_point last_change_;
  /// The index of the fault that has cut the data network; empty if that carries.
  std::optional<std::size_t> cut_data_;
  /// The index of the fault that has frozen the disk, until a worker that sleeps because of it is killed.
  std::optional<std::size_t> frozen_disk_;
  clock::time_point looked_for_sleepers_;
  disk_state disk_ = disk_state::sound;
  driver_state driver_ = driver_state::sound;
  bool may_kill_driver_ = true;
  std::optional<output_flood> flood_;
  std::optional<cpu_storm> storm_;
};

} // namespace troupe::chaos

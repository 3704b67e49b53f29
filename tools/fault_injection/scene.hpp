#pragma once

#include "ledger.hpp"
#include "links.hpp"
#include "log_pipe.hpp"
#include "small_disk.hpp"

#include <processes.hpp>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace troupe::chaos {

struct scene_options {
  /// All files are written below it.
  std::filesystem::path directory;
  std::filesystem::path caf_node;
  /// The training program and its arguments, without those that the scene adds.
  std::vector<std::string> program;
  std::uint32_t workers = 4;
  /// 0 means the driver's own node.
  std::size_t nodes = 2;
  /// Whether nodes and driver run in network namespaces, whose links can be cut.
  bool private_links = false;
  /// Whether the disk for checkpoints can be filled.
  bool small_disk = false;
  /// Whether the disk for checkpoints can be filled and frozen.
  bool freezable_disk = false;
};

/// A living worker process.
struct worker_process {
  pid_t pid = 0;
  /// The index of its node; `no_node` for the driver's own node or one that is gone.
  std::size_t node = 0;
  /// The last step in the ledger's lines of this process; 0 without any.
  std::uint64_t step = 0;
};

/// A disturbed run: caf-nodes, the driver and its workers, and the faults that can be injected. The destructor ends all
/// processes.
class scene {
 public:
  static constexpr std::size_t no_node = ~std::size_t{0};

  /// Throws `std::runtime_error` if a process cannot be started. Adds the features that are not permitted here to
  /// `skipped`.
  scene(scene_options options, std::vector<std::string>& skipped);
  scene(const scene&) = delete;
  scene& operator=(const scene&) = delete;
  ~scene();

  [[nodiscard]] bool has_links() const noexcept { return network_ != nullptr; }
  [[nodiscard]] bool has_small_disk() const noexcept { return disk_ != nullptr; }
  [[nodiscard]] bool has_freezable_disk() const noexcept { return disk_ && disk_->can_freeze(); }
  [[nodiscard]] std::size_t nodes() const noexcept { return nodes_.size(); }
  [[nodiscard]] testing::child_process& driver() { return *driver_.process; }
  [[nodiscard]] testing::child_process& node(std::size_t node) { return *nodes_[node].running.process; }
  /// All that the latest driver has printed.
  [[nodiscard]] std::string driver_output();
  [[nodiscard]] std::filesystem::path run_directory() const { return options_.directory / "runs" / "disturbed"; }

  /// Reads the run's new output, and restarts nodes that could not open their port yet.
  void look();

  /// The last step known to be applied by the latest generation.
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }

  /// All living worker processes, including those that have not started to train.
  [[nodiscard]] std::vector<worker_process> workers();

  /// The workers that have trained and have recovered from every fault injected into them.
  [[nodiscard]] std::vector<worker_process> sound_workers();

  /// Whether no fault affects this node now.
  [[nodiscard]] bool node_is_sound(std::size_t node) const;

  void kill(pid_t worker);
  void freeze(pid_t worker);
  void revive(pid_t worker);

  void kill_node(std::size_t node);
  void start_node_again(std::size_t node);
  void freeze_node(std::size_t node);
  void revive_node(std::size_t node);
  void cut(std::size_t node);
  /// Between the driver and the node only.
  void cut_control(std::size_t node);
  void mend_control(std::size_t node);
  /// Between the node and all others.
  void cut_data(std::size_t node);
  void mend_data(std::size_t node);
  void mend(std::size_t node);
  void reset(std::size_t node) const { network_->reset(node); }

  void freeze_driver() const { driver_.process->signal(SIGSTOP); }
  void revive_driver() const { driver_.process->signal(SIGCONT); }
  /// Does not wait for its end: a driver that writes to a frozen disk ends when that thaws.
  void kill_driver() const { driver_.process->signal(SIGKILL); }
  /// False, without an effect, while the one that was killed has not ended.
  [[nodiscard]] bool start_driver_again();

  [[nodiscard]] small_disk& disk() { return *disk_; }
  /// A worker that has not been hit and sleeps uninterruptibly; 0 if there is none.
  [[nodiscard]] pid_t worker_in_uninterruptible_sleep();

  /// The pipe to which a node writes its log; `no_node`: the driver. Replaced when the node or driver starts again.
  [[nodiscard]] log_pipe& log_of(std::size_t node) {
    return node == no_node ? *driver_.log : *nodes_[node].running.log;
  }

  /// Asks all workers for their state, and returns the answers with the last output lines of driver and nodes.
  [[nodiscard]] std::string interrogate();

 private:
  /// The log's reader outlives the process.
  struct logged_process {
    std::unique_ptr<log_pipe> log;
    std::unique_ptr<testing::child_process> process;
  };
  struct node_place {
    logged_process running;
    std::string address;
    /// We have killed, frozen or cut it off.
    bool held = false;
    int starts = 0;
  };

  [[nodiscard]] logged_process start(std::vector<std::string> prefix, const std::vector<std::string>& argv,
                                     const std::string& output) const;
  void start_node(std::size_t node, const std::string& listen);
  void start_driver();
  /// Requires the worker to make steps before it counts as sound again.
  void doubt(pid_t worker);
  void doubt_workers_of(std::size_t node);
  /// Drops what is known about the previous process of this pid. In a long run the system reuses pids.
  void forget(pid_t pid);

  scene_options options_;
  std::unique_ptr<private_network> network_;
  std::unique_ptr<small_disk> disk_;
  std::vector<node_place> nodes_;
  logged_process driver_;
  int drivers_ = 0;
  ledger_tail ledger_;
  std::uint64_t step_ = 0;
  std::uint64_t generation_ = 0;
  std::map<pid_t, std::uint64_t> steps_;
  /// The start time of the worker last found under each pid.
  std::map<pid_t, std::uint64_t> started_;
  /// Workers that we have killed and that may still be found for a moment.
  std::set<pid_t> killed_;
  /// Stopped workers.
  std::set<pid_t> frozen_;
  /// The step that a worker must exceed to count as sound again.
  std::map<pid_t, std::uint64_t> doubts_;
};

} // namespace troupe::chaos

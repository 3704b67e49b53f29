#pragma once

#include "ledger.hpp"
#include "links.hpp"
#include "small_disk.hpp"

#include <processes.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace troupe::chaos {

struct scene_options {
  /// Everything that is written lies below it.
  std::filesystem::path directory;
  std::filesystem::path caf_node;
  /// The training program with its arguments, without what the scene adds.
  std::vector<std::string> program;
  std::uint32_t workers = 4;
  /// 0: the driver's own node.
  std::size_t nodes = 2;
  /// Nodes and driver in namespaces, whose links can be cut.
  bool private_links = false;
  /// The disk that takes the checkpoints can be filled.
  bool small_disk = false;
};

/// A worker process as it is found.
struct worker_process {
  pid_t pid = 0;
  /// Index of its node; `no_node` for the driver's own, or one that is gone.
  std::size_t node = 0;
  /// The last step of which the ledger holds a line of this process; 0 for none.
  std::uint64_t step = 0;
};

/// A disturbed run: caf-nodes, the driver and its workers, and what can be done to them. Ends all of them with this
/// object.
class scene {
 public:
  static constexpr std::size_t no_node = ~std::size_t{0};

  /// Throws `std::runtime_error` where something cannot be started. What is not permitted here is told in `skipped`.
  scene(scene_options options, std::vector<std::string>& skipped);
  scene(const scene&) = delete;
  scene& operator=(const scene&) = delete;
  ~scene();

  // -- what there is ----------------------------------------------------------------------------------------------

  [[nodiscard]] bool has_links() const noexcept { return network_ != nullptr; }
  [[nodiscard]] bool has_small_disk() const noexcept { return disk_ != nullptr; }
  [[nodiscard]] std::size_t nodes() const noexcept { return nodes_.size(); }
  [[nodiscard]] testing::child_process& driver() { return *driver_; }
  [[nodiscard]] std::filesystem::path run_directory() const { return options_.directory / "runs" / "disturbed"; }

  /// Reads what the run has written since, and starts nodes again that did not get their port yet.
  void look();

  /// The last step that the latest generation has applied, as far as it is known.
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }

  /// All worker processes that live, those that have not begun included.
  [[nodiscard]] std::vector<worker_process> workers();

  /// Those that have trained, and to which nothing has been done of which they may not have come back.
  [[nodiscard]] std::vector<worker_process> sound_workers();

  /// Whether nothing is done to this node now.
  [[nodiscard]] bool node_is_sound(std::size_t node) const;

  // -- what can be done to it -------------------------------------------------------------------------------------

  void kill(pid_t worker);
  void freeze(pid_t worker);
  void revive(pid_t worker);

  void kill_node(std::size_t node);
  void start_node_again(std::size_t node);
  void freeze_node(std::size_t node);
  void revive_node(std::size_t node);
  void cut(std::size_t node);
  void mend(std::size_t node);

  void fill_disk();
  void free_disk();

  /// Asks everybody what they are doing, and writes down the answers, the driver's and the nodes' last lines included.
  [[nodiscard]] std::string interrogate();

 private:
  struct node_place {
    std::unique_ptr<testing::child_process> process;
    std::string address;
    /// Killed, frozen or cut off by us.
    bool held = false;
    int starts = 0;
  };

  [[nodiscard]] std::unique_ptr<testing::child_process>
  start(std::vector<std::string> prefix, const std::vector<std::string>& argv, const std::string& output) const;
  void start_node(std::size_t node, const std::string& listen);
  void start_driver();
  /// From now on it has to show that it has gone on.
  void doubt(pid_t worker);
  void doubt_workers_of(std::size_t node);
  /// In a long trial the system gives the numbers of dead processes to new ones, of which nothing is known yet.
  void forget_who_had(pid_t number);

  scene_options options_;
  std::unique_ptr<private_network> network_;
  std::unique_ptr<small_disk> disk_;
  std::vector<node_place> nodes_;
  std::unique_ptr<testing::child_process> driver_;
  ledger_tail ledger_;
  std::uint64_t step_ = 0;
  std::uint64_t generation_ = 0;
  std::map<pid_t, std::uint64_t> steps_;
  /// When the workers that were found last under these numbers were started.
  std::map<pid_t, std::uint64_t> started_;
  /// Workers that we have killed: they may be found for a moment longer.
  std::set<pid_t> killed_;
  /// Workers that are stopped.
  std::set<pid_t> frozen_;
  /// A worker is sound again when it has got further than this.
  std::map<pid_t, std::uint64_t> doubts_;
};

} // namespace troupe::chaos

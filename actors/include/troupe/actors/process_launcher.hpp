#pragma once

#include <troupe/actors/decisions/silence.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/node.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace troupe::actors {

/// One worker process, as its node wants it.
struct launch_request {
  run_id run;
  worker_id worker;
  std::string secret;
  std::vector<std::string> arguments;
  std::map<std::string, std::string> environment;
  /// The GPUs visible to it, by their names in CUDA_VISIBLE_DEVICES. If empty, it inherits the node's variable.
  std::vector<std::string> devices;
  /// Whose runs may have the process one after the other; empty: it ends with its worker.
  std::string group = {};
};

/// Whether a process was started.
struct launch_outcome {
  run_id run;
  worker_id worker;
  /// Its pid, once it executes the program.
  expected<std::uint32_t> pid;
};

/// The reports of a launcher to its node; called from a thread of the launcher.
struct launcher_events {
  /// Exactly once for each `start`, before anything else of that process.
  std::function<void(launch_outcome)> started;
  /// Without a number.
  std::function<void(worker_output)> output;
  /// Exactly once for each process that was started, after its last output.
  std::function<void(worker_ended)> ended;
};

/// A program of a run on this host.
struct found_program {
  std::string path;
  /// The launcher's own: keeps the program open.
  std::shared_ptr<const void> handle = {};
};

/// Starts and watches the processes of a node, as the node actor decides. runtime/ implements it with real processes;
/// tests fake it. Called from one thread at a time, and waits for nothing.
class process_launcher {
 public:
  virtual ~process_launcher() = default;

  /// The search for a run's program on this host. Does not look itself; what it returns reads and checks files and
  /// waits for other programs: it is called in a thread of its own, which may outlive the launcher.
  [[nodiscard]] virtual std::function<expected<found_program>()> search(const open_run& request) = 0;

  /// Keeps the program that was found, until `close`.
  virtual void open(const run_id& run, const found_program& program) = 0;

  /// Starts a process of an opened run. Does not wait: the outcome comes as an event.
  virtual void start(const launch_request& request) = 0;

  /// Kills all processes of a run. Their ends come as events.
  virtual void kill(const run_id& run) = 0;

  /// Kills one; nothing happens if it has ended.
  virtual void kill(const run_id& run, worker_id worker) = 0;

  /// The state of a silent process: 'X' if it is gone.
  [[nodiscard]] virtual expected<process_sample> sample(const run_id& run, worker_id worker) = 0;

  /// The state of the node's own process.
  [[nodiscard]] virtual expected<process_sample> sample_node() = 0;

  virtual void close(const run_id& run) = 0;

  /// Ends the processes of a group that wait for another run; those that have one end with it.
  virtual void end_group(const std::string& group) = 0;

  /// Ends the waiting processes of all groups but this one. Returns how many, by group.
  virtual std::map<std::string, std::size_t> end_waiting_but(const std::string& group) = 0;
};

using launcher_factory = std::function<std::unique_ptr<process_launcher>(launcher_events)>;

} // namespace troupe::actors

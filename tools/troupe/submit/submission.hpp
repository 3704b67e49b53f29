#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/job_variable.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

/// What `troupe submit` hands to an engine, as text that the engine reads. Pure functions.
namespace troupe::tool {

/// A program that an engine starts, and starts again until it has ended well.
struct submission {
  /// The job's and its run's.
  std::string name;
  /// Absolute; for Kubernetes a path or a name in the image.
  std::string program;
  std::vector<std::string> arguments;
  /// Where the program runs. Absolute.
  std::string directory;
  std::map<std::string, std::string> environment;
  runtime::job_context job;
};

/// A name for a job of this program: that of `--name` among its arguments, else the program's own.
[[nodiscard]] std::string default_job_name(const std::string& program, const std::vector<std::string>& arguments);

/// The value of an option, as in `--storage runs` or `--storage=runs`; empty if it is not given.
[[nodiscard]] std::string option_value(const std::vector<std::string>& arguments, const std::string& option);

/// Fails for what no engine could hand on: text that is not UTF-8, or has a zero byte; directories and variables with
/// control characters.
[[nodiscard]] expected<void> validate(const submission& job);

/// A word of ExecStart=, as systemd reads it back: neither specifiers nor variables are replaced.
[[nodiscard]] std::string systemd_word(const std::string& text);

/// The right side of Environment= for one variable.
[[nodiscard]] std::string systemd_variable(const std::string& name, const std::string& value);

/// A caf-node beside the driver, on the same host. Its workers outlive a driver that dies, and the next one adopts
/// them.
struct companion_node {
  /// The path of caf-node.
  std::string program;
  /// Where it listens, on 127.0.0.1.
  std::uint16_t port = 0;
};

/// Which systemd manager has a job's units.
struct systemd_manager {
  /// The user's; else the system's.
  bool is_user = true;
  /// Where it reads unit files.
  std::string directory;
  /// Whose processes a unit of the system has.
  std::string user;
};

struct unit_file {
  std::string name;
  std::string text;
};

[[nodiscard]] std::string unit_of(const std::string& job);
[[nodiscard]] std::string node_unit_of(const std::string& job);

/// The unit of the driver, and that of the node if there is one. The driver is started again when it dies, and removes
/// both when the job has ended well or at its time limit; `job.nodes` must lead to the node.
[[nodiscard]] std::vector<unit_file> systemd_units(const submission& job, const systemd_manager& manager,
                                                   const std::optional<companion_node>& node);

/// The batch script: tools/deploy/slurm.sbatch with this program, and with sbatch's options as `#SBATCH` lines.
[[nodiscard]] std::string slurm_script(const submission& job, const std::vector<std::string>& options);

/// What Kubernetes needs to know besides.
struct kubernetes_options {
  std::string image;
  std::string name_space = "default";
  unsigned nodes = 1;
  unsigned cpus = 2;
  std::string memory = "2Gi";
  unsigned gpus = 0;
  /// Of the run's files.
  std::string storage = "10Gi";
  std::string secret = "troupe-keys";
};

/// Service, StatefulSet of caf-nodes, claim and Job, for `kubectl apply -f -`.
[[nodiscard]] std::string kubernetes_manifest(const submission& job, const kubernetes_options& options);

/// Fails, naming the option, unless Kubernetes takes the name for a job and its pods, a namespace or a secret.
[[nodiscard]] expected<void> validate_kubernetes_name(const std::string& option, const std::string& name);

} // namespace troupe::tool

#pragma once

#include <troupe/checkpoint_sync.hpp>
#include <troupe/error.hpp>
#include <troupe/load_options.hpp>
#include <troupe/resources.hpp>
#include <troupe/serialization/checkpoint/retention.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

/// What a user says about a run: plain aggregates, validated as a whole before anything starts.
namespace troupe {

/// How workers are spread over nodes.
enum class placement_strategy : std::uint8_t {
  /// As few nodes as possible, in the order in which the nodes are named.
  pack = 1,
  /// Evenly over all nodes.
  spread = 2,
  /// All on one node, or not at all.
  strict_pack = 3,
  /// Each on a node of its own, or not at all.
  strict_spread = 4,
};

/// How many workers a run has. One number: so many begin; who is lost is replaced, and the others go on meanwhile, down
/// to one. A range: the run begins when there is room for `min`, takes in what joins up to `max`, and waits below
/// `min`.
struct worker_range {
  std::uint32_t min = 1;
  std::uint32_t max = 1;

  constexpr worker_range() = default;
  // A number stands for itself.
  constexpr worker_range(std::uint32_t number) : min(number), max(number) {} // NOLINT(google-explicit-constructor)
  constexpr worker_range(std::uint32_t least, std::uint32_t most) : min(least), max(most) {}

  [[nodiscard]] constexpr bool is_elastic() const noexcept { return min != max; }
  bool operator==(const worker_range&) const = default;
};

/// Reads "4", or "2-8" or "2:8" for a range.
[[nodiscard]] expected<worker_range> parse_worker_range(const std::string& text);
[[nodiscard]] std::string to_string(worker_range range);

/// How many workers, and what each of them takes.
struct scaling_config {
  worker_range num_workers = 1;
  /// V: the number of logical shards that every step's batch is cut into. It belongs to the program, like the batch
  /// size: the result depends on it. Never fewer than workers.
  std::uint32_t shards = 8;
  /// Each worker computes on a GPU of its own, or on as many (or such a fraction of one) as `resources_per_worker`
  /// says.
  bool use_gpu = false;
  /// What each worker reserves. 0 CPUs (the default) reserve none and let workers share. GPUs below one are shared by
  /// workers of this run: 0.25 for four on each; others are whole numbers.
  resources resources_per_worker = {};
  placement_strategy placement = placement_strategy::pack;
  /// How long a run with a range waits at its start for more room than `min` needs.
  std::chrono::milliseconds scale_up_wait{2'000};
  /// How long a run waits for room for its least number of workers, at its start and later, before it ends.
  std::chrono::milliseconds wait_for_workers{600'000};
};

/// `resources_per_worker`, with one GPU where `use_gpu` is set without a number.
[[nodiscard]] resources resources_of_worker(const scaling_config& scaling);

/// What to do when the run's directory holds a checkpoint, or does not.
enum class resume_mode : std::uint8_t {
  /// Go on from the latest good checkpoint where there is one, else begin.
  automatic = 1,
  /// Refuse to run into an existing run directory.
  never = 2,
  /// Fail without a checkpoint.
  required = 3,
};

/// How gradients are summed.
enum class reduction_mode : std::uint8_t {
  /// Over the canonical summation tree: the same bits on any number of workers.
  exact = 1,
  /// By the transport's own all-reduce: replicas agree, and nothing more is promised.
  fast = 2,
};

/// What carries the gradients between workers. Gradients in the memory of GPUs go through the host's with all but
/// `automatic` and `nccl`.
enum class transport_mode : std::uint8_t {
  /// What suits where the workers are, and the GPUs that they have.
  automatic = 1,
  /// Shared memory: all workers on one node.
  shm = 2,
  /// TCP, also between workers of one host.
  gloo = 3,
  /// Shared memory inside a host, TCP between hosts.
  hierarchical = 4,
  /// NCCL between workers with a GPU each, or not at all; what lies in host memory goes as with `automatic`.
  nccl = 5,
};

/// Which run this is, and where its files are.
struct run_config {
  /// The run's directory is `storage_path / name`. Letters, digits, '.', '_' and '-'.
  std::string name = "run";
  std::filesystem::path storage_path = "runs";
  resume_mode resume = resume_mode::automatic;
  /// The last step's number, counted over the whole life of the run; 0 leaves it to the training function. A run can be
  /// resumed with another number.
  std::uint64_t steps = 0;
  std::uint64_t seed = 1;
  reduction_mode reduction = reduction_mode::exact;
  transport_mode transport = transport_mode::automatic;
  /// Lets a checkpoint of another kind of processor be resumed, and workers of different kinds train together. The
  /// result is then marked as not exact.
  bool allow_mixed_hosts = false;
  /// Writes `ledger.jsonl`: which process computed which shards of which step.
  bool keep_ledger = false;
  /// Digests the tracked state around the body of every step (of the first step only, otherwise) to find a body that
  /// writes tracked state before `all_reduce`.
  bool check_every_step = false;
  /// In every so many steps (0: in none) one shard is computed a second time, by another worker, and both results are
  /// compared, bit by bit; shards and workers take turns. What differs ends the run with `errc::mismatch`, and is named
  /// with its tensor, ranks, shard and step. Changes no result. Costs, in such a step, the time of one more shard, the
  /// reduction that would overlap with backward, and memory for two gradients at most. With one worker it computes the
  /// shard twice itself.
  std::uint64_t verify_determinism = 0;
  /// Limit for starting worker processes until all have joined.
  std::chrono::milliseconds start_timeout{30'000};
  /// Limit of one collective operation. Where `failure.hang` is `replace`, ranks wait for a slow one as long as
  /// that is not replaced; when all of them have waited for each other for so long, the group is formed anew, once, and
  /// the run ends if they do so again. Where it is `report`, a rank that has waited for so long ends the run.
  std::chrono::milliseconds collective_timeout{300'000};
};

/// When to take checkpoints, and which to keep. One is always taken after the last step and when the run is stopped.
struct checkpoint_config {
  /// After every so many steps; 0 for none in between.
  std::uint64_t every_steps = 0;
  /// How many of the latest stay on disk; at least 1.
  std::uint32_t num_to_keep = 2;
  /// A metric of `step.report`: the checkpoint with the best value of it in rank 0's latest report stays, too, however
  /// old it is. Empty: none does. A checkpoint without the metric is never the best.
  std::string score_attribute = {};
  score_mode score_order = score_mode::max;
  /// Training stops for a copy of the state only; so many checkpoints may be on their way to the device behind its
  /// back. One that is due while they are is left out, with a warning. 0: training waits until each is durable.
  std::uint32_t max_in_flight = 1;
  /// How the parts get to where the driver is.
  checkpoint_sync sync = checkpoint_sync::automatic;
  /// Tensors that do not change (frozen layers, large tables) are not written again: once a piece of 1 MiB or more is
  /// the same as in the checkpoint before, it gets a file of its own, to which the next checkpoints have hard links.
  /// The file is read back and compared each time, and written afresh every 8th time. A checkpoint's directory is
  /// complete by itself; on file systems without links, and where parts are streamed, everything is written.
  bool reuse_unchanged = true;
};

/// What to do about a worker that stands still although its process lives.
enum class hang_mode : std::uint8_t {
  /// Only say so.
  report = 1,
  /// Say so, and replace it after `failure_config::replace_after`.
  replace = 2,
};

/// How failures are found, and how many a run puts up with before it ends.
struct failure_config {
  /// More lost workers, nodes and connections than so many within the window end the run; 0 ends it at the first.
  std::uint32_t max_failures = 100;
  std::chrono::milliseconds window{3'600'000};
  /// Starts a new worker for each that is lost, where there is room.
  bool replace_lost = true;
  /// A process or node that says nothing for so long is taken for frozen or cut off: it is killed, or given up. At
  /// least 500 ms.
  std::chrono::milliseconds heartbeat_timeout{1'200};
  hang_mode hang = hang_mode::replace;
  /// A rank whose training thread does nothing for so long is named. `train_context::heartbeat` says that it does
  /// something; before its first loop, too.
  std::chrono::milliseconds report_after{30'000};
  std::chrono::milliseconds replace_after{600'000};
  /// A tracked state of more bytes is given to a joiner while the others train on; it then applies what they have
  /// reduced meanwhile. For a smaller one the others wait.
  std::uint64_t background_transfer_above_bytes = std::uint64_t{16} << 20;
};

/// On which nodes to run.
struct cluster_config {
  /// `HOST:PORT` of each caf-node; empty: the driver hosts a node itself and the workers run on this machine.
  std::vector<std::string> nodes;
  /// Connects without TLS. Any user who reaches a port could then run code as its owner.
  bool insecure = false;
  /// Where keys lie; empty: `$TROUPE_KEYS`, else `~/.config/troupe/keys`.
  std::filesystem::path keys;
  /// The data plane carries clear text: off loopback it runs only where this says that the network is private.
  bool trusted_network = false;
  /// Limit for reaching a node.
  std::chrono::milliseconds connect_timeout{3'000};
};

/// Everything that a trainer is told.
struct trainer_config {
  scaling_config scaling = {};
  run_config run = {};
  failure_config failure = {};
  checkpoint_config checkpoint = {};
  cluster_config cluster = {};
  /// Handed to the training function as `ctx.config()`. Part of the run's identity: a resumed run must have the same.
  nlohmann::json config = nlohmann::json::object();
  /// Handed over as `ctx.options()`: what does not decide the result, such as paths and intervals. May change when a
  /// run is resumed.
  nlohmann::json options = nlohmann::json::object();
  /// A checkpoint directory of any run whose state a new run begins with; empty for none.
  std::filesystem::path load_checkpoint = {};
  /// How that state becomes this run's.
  load_options load = {};
  /// The worker processes' command-line arguments after the program's name.
  std::vector<std::string> arguments = {};
};

/// Every way in which a configuration cannot be meant is told here, before anything starts.
[[nodiscard]] expected<void> validate(const trainer_config& config);

/// One `HOST:PORT`, `[IPV6]:PORT` taken apart.
struct endpoint {
  std::string host;
  std::uint16_t port = 0;

  bool operator==(const endpoint&) const = default;
};

/// Reads `HOST:PORT`; port 0 is allowed only where a port is chosen by the system.
[[nodiscard]] expected<endpoint> parse_endpoint(const std::string& text);

[[nodiscard]] std::string to_string(const endpoint& where);
[[nodiscard]] std::string to_string(resume_mode mode);
[[nodiscard]] std::string to_string(placement_strategy strategy);

} // namespace troupe

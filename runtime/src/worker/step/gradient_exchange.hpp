#pragma once

#include "worker/step/step_bucket.hpp"

#include <troupe/collectives/communicator.hpp>
#include <troupe/device_span.hpp>
#include <troupe/types.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

namespace troupe::runtime {

class worker_group;

/// How the contributions of a step are summed.
struct exchange_terms {
  std::uint32_t shards = 1;
  /// By rank.
  std::vector<shard_range> ownership;
  /// The batch's samples, by which sums are divided.
  std::uint64_t divisor = 1;
  /// Leaves the order of sums to the transport.
  bool is_fast = false;
};

/// A bucket where the plan computes: in host memory, or in the memory of the worker's GPU.
using bucket_memory = std::variant<std::span<std::byte>, device_span<std::byte>>;
using reduced_memory = std::variant<std::span<const std::byte>, device_span<const std::byte>>;

/// The contributions of a worker's shards, and their sum over all ranks, step after step in one generation: in host
/// memory or in the memory of the worker's GPU. Throws `exception` with the errors of the group. All calls come from
/// the training thread.
class gradient_exchange {
 public:
  gradient_exchange() = default;
  gradient_exchange(const gradient_exchange&) = delete;
  gradient_exchange& operator=(const gradient_exchange&) = delete;
  virtual ~gradient_exchange() = default;

  /// A step begins, of which this worker computes `range`.
  virtual void begin(shard_range range) = 0;
  /// The zeroed bucket for the contribution of the next shard.
  [[nodiscard]] virtual bucket_memory next(shard_id shard) = 0;

  /// Begins the reduction of a part whose contributions are complete. All ranks start all parts in the same order.
  virtual void start(std::size_t part) = 0;
  /// How many parts were started since `begin`.
  [[nodiscard]] virtual std::size_t started() const noexcept = 0;
  /// Starts the parts that are left, and returns once the sum of all ranks is complete.
  virtual void finish() = 0;
  /// Returns once no started reduction writes any more, even after a failure.
  virtual void wait_until_idle() noexcept = 0;
  /// Whether something was started in a group that lives, and is under way.
  [[nodiscard]] virtual bool is_under_way() const = 0;

  /// The reduced bucket: until the next step's first part is started.
  [[nodiscard]] virtual reduced_memory result() const noexcept = 0;
  /// The sums of the metrics, in host memory.
  [[nodiscard]] virtual std::span<const double> metrics() const noexcept = 0;

  /// Copies a bucket of this exchange's kind to host memory.
  virtual void read(bucket_memory from, std::span<std::byte> to) = 0;
};

[[nodiscard]] std::unique_ptr<gradient_exchange> make_host_exchange(collectives::communicator& group,
                                                                    const step_bucket& bucket, exchange_terms terms);

/// `step` is the last step whose body has returned.
[[nodiscard]] std::unique_ptr<gradient_exchange> make_device_exchange(worker_group& group, const step_bucket& bucket,
                                                                      exchange_terms terms, step_id step);

} // namespace troupe::runtime

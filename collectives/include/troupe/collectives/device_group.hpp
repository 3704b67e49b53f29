#pragma once

#include <troupe/collectives/bucket_layout.hpp>
#include <troupe/collectives/device.hpp>
#include <troupe/collectives/hang_policy.hpp>
#include <troupe/collectives/leaf_accumulator.hpp>
#include <troupe/collectives/summation_tree.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::collectives {

/// Where the sum of one bucket appears in device memory in each step. A group makes it for its own calls. It may
/// outlive the group, but must outlive the device's last work on it.
class device_bucket {
 public:
  device_bucket() = default;
  device_bucket(const device_bucket&) = delete;
  device_bucket& operator=(const device_bucket&) = delete;
  virtual ~device_bucket() = default;

  /// The sum: a bucket of the layout, on a 256-byte boundary. Complete for all streams once
  /// `device_group::finish` has returned; valid until the next call that reduces into this object.
  [[nodiscard]] virtual device_span<const std::byte> bytes() const noexcept = 0;

  /// The pieces of the bucket, in order. Each call reduces one.
  [[nodiscard]] virtual std::span<const byte_range> parts() const noexcept = 0;
};

/// The ranks of one generation, for buckets in device memory. Barriers, state and everything else in host memory go
/// through the generation's `communicator`, which exists beside it.
///
///     sums.finish(part, stream);                     // this worker's partial sums, put on the stream of backward
///     ready.record(stream);
///     group.reduce_leaves(layout, shards, ownership, sums.partials(), result, ready, divisor, part);
///     ...                                            // backward continues; more parts
///     group.finish();                                // all started parts are reduced
///
/// A call that starts a reduction returns once it is running, on the group's streams or its thread. All ranks start the
/// same reductions in the same order. One thread makes all calls except `abort`. Partial sums, events and results stay
/// unchanged until `finish` has returned.
///
/// Errors are those of `communicator` and of `device`. All but `errc::invalid_argument` are final. After an error or an
/// abort, `finish` returns once the group no longer writes to the caller's memory, so that the worker may report the
/// loss. If the device or NCCL hangs, the process ends as `hang_policy` says.
class device_group {
 public:
  device_group() = default;
  device_group(const device_group&) = delete;
  device_group& operator=(const device_group&) = delete;

  /// Waits as `finish` does, then leaves the group.
  virtual ~device_group() = default;

  /// A display name: "nccl 2.28.9", "staged (shm)", "self".
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual rank_id rank() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t world_size() const noexcept = 0;
  [[nodiscard]] virtual generation_id generation() const noexcept = 0;
  [[nodiscard]] virtual const std::shared_ptr<device>& where() const noexcept = 0;

  /// Whether the next generation's group can be formed from this one (`nccl_options::predecessor`). If so, keep the
  /// group until then: it needs nothing of its generation's `communicator`. If not, destroy it before the communicator.
  [[nodiscard]] virtual bool can_be_predecessor() const noexcept = 0;

  /// The longest that one reduction may take from now on, measured from its `ready` event.
  virtual void set_deadline(std::chrono::milliseconds deadline) noexcept = 0;

  /// Device memory that saves the group copies. May outlive the group; a later generation's group recognises it.
  [[nodiscard]] virtual expected<device_memory> allocate(std::uint64_t size_bytes) = 0;

  /// Makes the place for sums of buckets of this layout; see `communicator::make_bucket`.
  [[nodiscard]] virtual expected<std::unique_ptr<device_bucket>> make_bucket(const bucket_layout& layout,
                                                                             std::vector<byte_range> parts = {}) = 0;

  /// Starts `communicator::reduce_leaves` on partial sums in device memory, which are complete once `ready` is. The
  /// same bits as on the host.
  [[nodiscard]] virtual expected<void> reduce_leaves(const bucket_layout& layout, std::uint32_t shards,
                                                     std::span<const shard_range> ownership,
                                                     std::span<const leaf_partial> partials, device_bucket& result,
                                                     const device_event& ready, std::uint64_t divisor = 1,
                                                     std::size_t part = 0) = 0;

  /// Starts `communicator::all_reduce_fast`; `contribution` is a bucket of `layout`. The
  /// implementation chooses the order of additions and the type in which 16-bit floats are summed.
  [[nodiscard]] virtual expected<void> all_reduce_fast(const bucket_layout& layout,
                                                       device_span<const std::byte> contribution, device_bucket& result,
                                                       const device_event& ready, std::uint64_t divisor = 1,
                                                       std::size_t part = 0) = 0;

  /// Waits for all started reductions. Success means that all their events have completed.
  [[nodiscard]] virtual expected<void> finish() = 0;

  /// Makes `finish` and every later call return `reason` soon. From any thread; the first reason wins.
  virtual void abort(error reason) noexcept = 0;

  /// Whether the running reductions have been waiting for this rank's own GPU for some time, and for no peer: it has
  /// not reached a `ready` event, or does not finish a sum. From any thread; makes no device call.
  [[nodiscard]] virtual bool awaits_own_gpu() const noexcept = 0;

  /// Describes the running call, to find the slow rank: "nccl 2.28.9, in reduce_leaves #12 (part 3), which waits for
  /// this worker's own GPU". From any thread.
  [[nodiscard]] virtual std::string describe() const = 0;
};

/// A group of one rank: only the arithmetic, on the device.
[[nodiscard]] expected<std::unique_ptr<device_group>>
make_self_device_group(std::shared_ptr<device> where, generation_id generation, hang_policy on_hang = {});

/// The `leaf_accumulator` for buckets in device memory: adds one worker's contributions along the canonical tree. Every
/// call submits its work to `stream`, the same one from `begin` to `end`, and returns. Misuse throws
/// `std::logic_error`.
class device_leaf_accumulator {
 public:
  /// Allocates buckets of sums: `device_group::allocate` of any generation's group.
  using allocator = std::function<expected<device_memory>(std::uint64_t size_bytes)>;

  /// Fails with `errc::invalid_argument` as `leaf_accumulator::make` does.
  [[nodiscard]] static expected<device_leaf_accumulator> make(std::shared_ptr<device> where, bucket_layout layout,
                                                              std::uint32_t shards, allocator allocate = {});
  device_leaf_accumulator(device_leaf_accumulator&&) noexcept;
  device_leaf_accumulator& operator=(device_leaf_accumulator&&) noexcept;
  ~device_leaf_accumulator();

  void begin(shard_range range);

  /// The bucket for this shard's contribution. It is zeroed on `stream`; write it on the same stream.
  [[nodiscard]] expected<device_span<std::byte>> next(shard_id shard, const device_stream& stream);

  /// `close`: no shard follows; `partials()` are known. `finish`: work already on the stream writes this part of the
  /// last contribution; completes that part of the partial sums. `end`: both, for everything that is left.
  [[nodiscard]] expected<void> close(const device_stream& stream);
  [[nodiscard]] expected<void> finish(byte_range range, const device_stream& stream);
  [[nodiscard]] expected<void> end(const device_stream& stream);

  /// Pointers to device memory.
  [[nodiscard]] std::span<const leaf_partial> partials() const noexcept;
  [[nodiscard]] const bucket_layout& layout() const noexcept;
  [[nodiscard]] std::uint32_t shards() const noexcept;

 private:
  struct state;
  explicit device_leaf_accumulator(std::unique_ptr<state> made);
  std::unique_ptr<state> state_;
};

} // namespace troupe::collectives

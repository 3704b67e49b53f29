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

/// Where the sum of one bucket appears in device memory, step after step. Made by a group for its own calls, and may
/// outlive it, but not the device's last work on it.
class device_bucket {
 public:
  device_bucket() = default;
  device_bucket(const device_bucket&) = delete;
  device_bucket& operator=(const device_bucket&) = delete;
  virtual ~device_bucket() = default;

  /// The sum, in device memory: bytes of the layout, from a 256-byte boundary. Complete once `device_group::finish` has
  /// returned, for any stream; stays until the next call that reduces into this object.
  [[nodiscard]] virtual std::span<const std::byte> bytes() const noexcept = 0;

  /// The pieces that are reduced by a call each; together they are the bucket.
  [[nodiscard]] virtual std::span<const byte_range> parts() const noexcept = 0;
};

/// The ranks of one generation, for buckets in device memory. Barriers, state and whatever else lies in host memory
/// goes by the generation's `communicator`, which this stands beside: a group is formed of both.
///
///     sums.finish(part, stream);                     // this worker's partial sums, put on the stream of backward
///     ready.record(stream);
///     group.reduce_leaves(layout, shards, ownership, sums.partials(), result, ready, divisor, part);
///     ...                                            // backward goes on; more parts
///     group.finish();                                // all that was begun is reduced
///
/// Calls that begin a reduction return once it is under way, on a stream of the group's own or a thread beside it.
/// All ranks begin the same ones in the same order, and all calls but `abort` come from one thread. Partial sums,
/// events and results stay as they are until `finish` has returned.
///
/// Errors are those of `communicator`, and those of `device`. All but `errc::invalid_argument` are final. After one,
/// and after an abort, `finish` returns once nothing of the group's writes to the caller's memory any more, so that a
/// worker may report; where the device or NCCL does not let go, the process ends as `hang_policy` says.
class device_group {
 public:
  device_group() = default;
  device_group(const device_group&) = delete;
  device_group& operator=(const device_group&) = delete;

  /// Waits as `finish` does, and leaves.
  virtual ~device_group() = default;

  /// "nccl 2.28.9", "staged (shm)", "self": for people.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual rank_id rank() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t world_size() const noexcept = 0;
  [[nodiscard]] virtual generation_id generation() const noexcept = 0;
  [[nodiscard]] virtual const std::shared_ptr<device>& where() const noexcept = 0;

  /// Whether the next generation's group can be formed from this one (`nccl_options::predecessor`). If so, keep the
  /// group until then: it needs nothing of its generation's `communicator`. If not, destroy it before the communicator.
  [[nodiscard]] virtual bool can_be_predecessor() const noexcept = 0;

  /// The longest that one reduction may take from now on, from its `ready` event on.
  virtual void set_deadline(std::chrono::milliseconds deadline) noexcept = 0;

  /// Device memory that spares the backend copies. May outlive the group: the group of a later generation knows it
  /// again.
  [[nodiscard]] virtual expected<device_memory> allocate(std::uint64_t size_bytes) = 0;

  /// A place for the sums of buckets of this layout; see `communicator::make_bucket`.
  [[nodiscard]] virtual expected<std::unique_ptr<device_bucket>> make_bucket(const bucket_layout& layout,
                                                                             std::vector<byte_range> parts = {}) = 0;

  /// Begins what `communicator::reduce_leaves` does, on partial sums in device memory that are complete once `ready`
  /// is. The same bits as on the host.
  [[nodiscard]] virtual expected<void> reduce_leaves(const bucket_layout& layout, std::uint32_t shards,
                                                     std::span<const shard_range> ownership,
                                                     std::span<const leaf_partial> partials, device_bucket& result,
                                                     const device_event& ready, std::uint64_t divisor = 1,
                                                     std::size_t part = 0) = 0;

  /// Begins what `communicator::all_reduce_fast` does; `contribution` is a bucket of `layout` in device memory. The
  /// order of additions, and the type of sums of 16-bit floats, are the backend's.
  [[nodiscard]] virtual expected<void> all_reduce_fast(const bucket_layout& layout, const std::byte* contribution,
                                                       device_bucket& result, const device_event& ready,
                                                       std::uint64_t divisor = 1, std::size_t part = 0) = 0;

  /// Returns once everything that was begun has ended: without an error, once the events of all of it have completed.
  [[nodiscard]] virtual expected<void> finish() = 0;

  /// Makes `finish` and every later call return `reason` soon. From any thread; the first reason stays.
  virtual void abort(error reason) noexcept = 0;

  /// Whether what was begun has waited for some time for this rank's own GPU, which has not come to a `ready` event, or
  /// does not end a sum, and for no peer. From any thread, without a call of the device's.
  [[nodiscard]] virtual bool awaits_own_gpu() const noexcept = 0;

  /// "nccl 2.28.9, in reduce_leaves #12 (part 3), which waits for this worker's own GPU": for people who look for
  /// the rank that is late. From any thread.
  [[nodiscard]] virtual std::string describe() const = 0;
};

/// The group of one: the arithmetic alone, on the device.
[[nodiscard]] expected<std::unique_ptr<device_group>>
make_self_device_group(std::shared_ptr<device> where, generation_id generation, hang_policy on_hang = {});

/// Adds up the contributions of one worker's shards along the canonical tree, as `leaf_accumulator` does, with buckets
/// in device memory: every call puts its work on `stream`, which is the same from `begin` to `end`, and returns. Misuse
/// throws `std::logic_error`, as there.
class device_leaf_accumulator {
 public:
  /// Where buckets of sums come from: `device_group::allocate`, of the group of any generation.
  using allocator = std::function<expected<device_memory>(std::uint64_t size_bytes)>;

  /// Fails with `errc::invalid_argument` as `leaf_accumulator::make` does.
  [[nodiscard]] static expected<device_leaf_accumulator> make(std::shared_ptr<device> where, bucket_layout layout,
                                                              std::uint32_t shards, allocator allocate = {});
  device_leaf_accumulator(device_leaf_accumulator&&) noexcept;
  device_leaf_accumulator& operator=(device_leaf_accumulator&&) noexcept;
  ~device_leaf_accumulator();

  void begin(shard_range range);

  /// The bucket for this shard's contribution: zeroed, once the stream comes there. Work that writes it goes on the
  /// same stream.
  [[nodiscard]] expected<std::span<std::byte>> next(shard_id shard, const device_stream& stream);

  /// `close`: no shard follows; `partials()` are known. `finish`: this part of the last contribution is written by what
  /// stands on the stream; completes that part of the partial sums. `end`: both, for whatever is left.
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

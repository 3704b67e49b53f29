#pragma once

#include <troupe/collectives/bucket_layout.hpp>
#include <troupe/collectives/call_queue.hpp>
#include <troupe/collectives/flight_record.hpp>
#include <troupe/collectives/leaf_accumulator.hpp>
#include <troupe/collectives/reduction.hpp>
#include <troupe/collectives/summation_tree.hpp>
#include <troupe/dtype.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <vector>

namespace troupe::collectives {

/// What a communicator has given to its peers so far: payload, without the backend's own framing. Over shared memory,
/// where nothing is sent, what this rank has read of its peers' memory.
struct traffic {
  std::uint64_t sent_bytes = 0;
  std::uint64_t sent_messages = 0;

  bool operator==(const traffic&) const = default;
};

/// Where the sum of one bucket appears, step after step. Made by a communicator for its own calls, and may outlive it.
class reduced_bucket {
 public:
  reduced_bucket() = default;
  reduced_bucket(const reduced_bucket&) = delete;
  reduced_bucket& operator=(const reduced_bucket&) = delete;
  virtual ~reduced_bucket() = default;

  /// The sum: bytes of the layout, from a 64-byte boundary. Parts of it may lie in the peers' memory, which is why
  /// nobody writes here. Stays as it is until this rank makes the next call that reduces into this object; a call that
  /// fails leaves it undefined.
  [[nodiscard]] virtual std::span<const std::byte> bytes() const noexcept = 0;

  /// The pieces that are reduced by a call each; together they are the bucket.
  [[nodiscard]] virtual std::span<const byte_range> parts() const noexcept = 0;
};

/// Cuts a bucket into parts of about `part_bytes`, on boundaries that `make_bucket` takes. At least one part.
[[nodiscard]] std::vector<byte_range> cut_bucket(const bucket_layout& layout, std::uint64_t part_bytes);

/// One generation's group of ranks. The calls block and are made from one thread, by all ranks in the same order and
/// with the same sizes; a rank that calls something else is found and named, on all ranks. Only `abort` and `record`
/// may be called from any thread, at any time between construction and destruction.
///
/// Errors, of every call:
/// - `errc::invalid_argument`: the arguments do not fit together; nothing was sent, the group is unharmed.
/// - `errc::aborted`: a peer is gone; the message names operation and ranks.
/// - `errc::timed_out`: the deadline has passed; the message names operation, sequence number and missing ranks.
/// - `errc::mismatch`: another rank makes another call; the message names both calls and ranks.
/// - whatever `abort` was given.
/// All but the first are final: every later call returns the same error, the connections are closed so that the peers
/// find out, and memory that was handed in is no longer touched. Form a new communicator.
class communicator {
 public:
  communicator() = default;
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;

  /// Leaves the group. What a peer still needs from a call that has returned here reaches it; its next call fails.
  virtual ~communicator() = default;

  [[nodiscard]] virtual rank_id rank() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t world_size() const noexcept = 0;
  [[nodiscard]] virtual generation_id generation() const noexcept = 0;
  [[nodiscard]] virtual traffic sent() const noexcept = 0;

  /// What this rank is doing, and whom it waits for. From any thread.
  [[nodiscard]] virtual flight_record record() const = 0;

  /// The longest that a call may take from now on. Not while one is under way.
  virtual void set_deadline(std::chrono::milliseconds deadline) noexcept = 0;

  /// Memory that spares copies when it is handed to this communicator: peers of the same host read it in place. Blocks
  /// start on 64-byte boundaries, and live as long as the process's `shared_pool`.
  [[nodiscard]] virtual std::pmr::memory_resource& memory() noexcept = 0;

  /// A place for the sums of buckets of this layout, which are reduced in `parts`: consecutive, from 0 to the end, on
  /// boundaries of 4,096 bytes; none for one part that is all. Local: nobody else needs to call it.
  [[nodiscard]] virtual expected<std::unique_ptr<reduced_bucket>> make_bucket(const bucket_layout& layout,
                                                                              std::vector<byte_range> parts = {}) = 0;

  // -- rank collectives: one contribution for each rank
  // -----------------------------------------------------------------

  /// Combines `data` of all ranks in place, along the canonical tree over ranks: the same bits on every rank and in
  /// every run of the same world size.
  [[nodiscard]] virtual expected<void> all_reduce(dtype type, reduce_op op, std::span<std::byte> data) = 0;

  /// `input` has one block of `output`'s size for each rank; rank r gets the combination of all ranks' blocks r.
  [[nodiscard]] virtual expected<void> reduce_scatter(dtype type, reduce_op op, std::span<const std::byte> input,
                                                      std::span<std::byte> output) = 0;

  /// `output` becomes all ranks' `input`, in rank order. The inputs have equal sizes.
  [[nodiscard]] virtual expected<void> all_gather(std::span<const std::byte> input, std::span<std::byte> output) = 0;

  /// All ranks' blobs, in rank order; sizes may differ.
  [[nodiscard]] virtual expected<std::vector<std::vector<std::byte>>>
  all_gather_bytes(std::span<const std::byte> mine) = 0;

  /// `data` becomes that of `root`.
  [[nodiscard]] virtual expected<void> broadcast(std::span<std::byte> data, rank_id root) = 0;

  /// Both have one block for each rank: my block r of `input` becomes r's block `rank()` of `output`.
  [[nodiscard]] virtual expected<void> all_to_all(std::span<const std::byte> input, std::span<std::byte> output) = 0;

  /// Returns once every rank has called it. On return each word is the maximum over all ranks.
  [[nodiscard]] virtual expected<void> barrier(std::span<std::uint64_t> words) = 0;
  [[nodiscard]] expected<void> barrier() { return barrier(std::span<std::uint64_t>{}); }

  /// Sends to one peer, which calls `receive` with the same size. Returns once `data` may be changed. Messages between
  /// two ranks keep their order.
  [[nodiscard]] virtual expected<void> send(rank_id peer, std::span<const std::byte> data) = 0;
  [[nodiscard]] virtual expected<void> receive(rank_id peer, std::span<std::byte> data) = 0;

  // -- collectives over logical shards
  // ------------------------------------------------------------------------------------

  /// The canonical sum over all `shards`, divided once by `divisor` at the root: the same bits for every world size and
  /// ownership. `ownership` has each rank's shards, the same on all ranks; `partials` are the sums of the
  /// `maximal_nodes` of mine, as a `leaf_accumulator` of this layout gives them: each `layout.sums().size_bytes()`
  /// long. 16-bit floats are summed, and sent, in f32 and rounded once, at the root. `result` was made by this
  /// communicator for this layout; only its part number `part` is reduced, and only that part of the partial sums is
  /// read.
  [[nodiscard]] virtual expected<void> reduce_leaves(const bucket_layout& layout, std::uint32_t shards,
                                                     std::span<const shard_range> ownership,
                                                     std::span<const leaf_partial> partials, reduced_bucket& result,
                                                     std::uint64_t divisor = 1, std::size_t part = 0) = 0;

  /// Sums part number `part` of one `contribution` (a bucket of `layout`) for each rank, in the order that suits the
  /// backend, and divides by `divisor`. All ranks get the same bits; another world size, backend or run may get others.
  [[nodiscard]] virtual expected<void> all_reduce_fast(const bucket_layout& layout,
                                                       std::span<const std::byte> contribution, reduced_bucket& result,
                                                       std::uint64_t divisor = 1, std::size_t part = 0) = 0;

  // -- several calls at a time
  // --------------------------------------------------------------------------------------------

  /// Has `call`, which makes calls of this communicator and returns the first error, run on a thread of the group's,
  /// after all that was started before it. All ranks start the same calls in the same order. What `call` refers to
  /// stays until it has ended. A call that is not started waits for those that were; `abort` ends them all.
  [[nodiscard]] pending_call start(std::function<expected<void>()> call) { return calls_.start(std::move(call)); }

  /// Makes every pending and later call return `reason` at once. From any thread; the first reason stays.
  virtual void abort(error reason) noexcept = 0;

  // -- the same with element types
  // -----------------------------------------------------------------------------------------

  template <class T>
  [[nodiscard]] expected<void> all_reduce(std::span<T> data, reduce_op op = reduce_op::sum) {
    return all_reduce(dtype_of<T>, op, std::as_writable_bytes(data));
  }

  template <class T>
  [[nodiscard]] expected<void> reduce_scatter(std::type_identity_t<std::span<const T>> input, std::span<T> output,
                                              reduce_op op = reduce_op::sum) {
    return reduce_scatter(dtype_of<T>, op, std::as_bytes(input), std::as_writable_bytes(output));
  }

  template <class T>
  requires(!std::is_same_v<T, std::byte>)
      [[nodiscard]] expected<void> all_gather(std::type_identity_t<std::span<const T>> input, std::span<T> output) {
    return all_gather(std::as_bytes(input), std::as_writable_bytes(output));
  }

  template <class T>
  requires(!std::is_same_v<T, std::byte>) [[nodiscard]] expected<void> broadcast(std::span<T> data, rank_id root) {
    return broadcast(std::as_writable_bytes(data), root);
  }

  template <class T>
  requires(!std::is_same_v<T, std::byte>)
      [[nodiscard]] expected<void> all_to_all(std::type_identity_t<std::span<const T>> input, std::span<T> output) {
    return all_to_all(std::as_bytes(input), std::as_writable_bytes(output));
  }

 protected:
  /// For the backends: at the begin of each call, and first thing in the destructor.
  void wait_for_started_calls() { calls_.wait_until_idle(); }
  void stop_started_calls() { calls_.stop(); }

 private:
  call_queue calls_;
};

/// The group of one: nothing is sent, and the arithmetic is that of a larger group.
[[nodiscard]] std::unique_ptr<communicator> make_self_communicator(generation_id generation);

} // namespace troupe::collectives

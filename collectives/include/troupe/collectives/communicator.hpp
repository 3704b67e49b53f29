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

/// The payload that a communicator has sent to its peers so far, without the transport's own framing. Over shared
/// memory, where nothing is sent, the bytes that this rank has read from its peers' memory.
struct traffic {
  std::uint64_t sent_bytes = 0;
  std::uint64_t sent_messages = 0;

  bool operator==(const traffic&) const = default;
};

/// Where the sum of one bucket appears in each step. A communicator makes it for its own calls; it may outlive the
/// communicator.
class reduced_bucket {
 public:
  reduced_bucket() = default;
  reduced_bucket(const reduced_bucket&) = delete;
  reduced_bucket& operator=(const reduced_bucket&) = delete;
  virtual ~reduced_bucket() = default;

  /// The sum: a bucket of the layout, on a 64-byte boundary. Parts of it may be in the peers' memory, so it is
  /// read-only. Valid until this rank's next call that reduces into this object; undefined after a call that fails.
  [[nodiscard]] virtual std::span<const std::byte> bytes() const noexcept = 0;

  /// The pieces of the bucket, in order. Each call reduces one.
  [[nodiscard]] virtual std::span<const byte_range> parts() const noexcept = 0;
};

/// Cuts a bucket into at least one part of about `part_bytes`, on boundaries that `make_bucket` accepts.
[[nodiscard]] std::vector<byte_range> cut_bucket(const bucket_layout& layout, std::uint64_t part_bytes);

/// One generation's group of ranks. Calls block. One thread makes them, and all ranks make the same calls in the same
/// order with the same sizes; if a rank makes another call, all ranks get an error that names it. `abort` and `record`
/// may be called from any thread between construction and destruction.
///
/// Every call may fail with:
/// - `errc::invalid_argument`: the arguments are inconsistent. Nothing was sent; the group stays usable.
/// - `errc::aborted`: a peer is lost. The message names the operation and the ranks.
/// - `errc::timed_out`: the deadline expired. The message names the operation, its sequence number and the missing
///   ranks.
/// - `errc::mismatch`: another rank makes another call. The message names both calls and both ranks.
/// - the reason given to `abort`.
///
/// All but the first are final: later calls return the same error, connections are closed so that the peers notice, and
/// the caller's memory is no longer accessed. Form a new communicator.
class communicator {
 public:
  communicator() = default;
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;

  /// Leaves the group. Peers still receive what they need for calls that have returned here; their next call fails.
  virtual ~communicator() = default;

  [[nodiscard]] virtual rank_id rank() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t world_size() const noexcept = 0;
  [[nodiscard]] virtual generation_id generation() const noexcept = 0;
  [[nodiscard]] virtual traffic sent() const noexcept = 0;

  /// What this rank is doing and which ranks it waits for. From any thread.
  [[nodiscard]] virtual flight_record record() const = 0;

  /// The ranks that were asked for their state and have not answered for about a second or longer, as far as the
  /// transport asks. Also after a failure. From any thread.
  [[nodiscard]] virtual std::vector<rank_id> unanswering() const { return {}; }

  /// The longest that a call may take from now on. Not while a call is running.
  virtual void set_deadline(std::chrono::milliseconds deadline) noexcept = 0;

  /// Memory that saves copies when its blocks are passed to this communicator: peers on the same host read it in place.
  /// Blocks are aligned to 64 bytes and live as long as the process's `shared_pool`.
  [[nodiscard]] virtual std::pmr::memory_resource& memory() noexcept = 0;

  /// Makes the place for sums of buckets of this layout. `parts` are consecutive, cover the bucket, and start on
  /// multiples of 4,096 bytes; empty means one part. A local call: peers are not involved.
  [[nodiscard]] virtual expected<std::unique_ptr<reduced_bucket>> make_bucket(const bucket_layout& layout,
                                                                              std::vector<byte_range> parts = {}) = 0;

  // -- rank collectives: one contribution for each rank

  /// Combines `data` of all ranks in place along the canonical tree over ranks. All ranks get the same bits, in every
  /// run of the same world size.
  [[nodiscard]] virtual expected<void> all_reduce(dtype type, reduce_op op, std::span<std::byte> data) = 0;

  /// `input` has one block of `output`'s size for each rank. Rank r gets the combination of block r of all ranks.
  [[nodiscard]] virtual expected<void> reduce_scatter(dtype type, reduce_op op, std::span<const std::byte> input,
                                                      std::span<std::byte> output) = 0;

  /// `output` becomes the `input` of all ranks in rank order. All inputs have the same size.
  [[nodiscard]] virtual expected<void> all_gather(std::span<const std::byte> input, std::span<std::byte> output) = 0;

  /// The blobs of all ranks in rank order. Their sizes may differ.
  [[nodiscard]] virtual expected<std::vector<std::vector<std::byte>>>
  all_gather_bytes(std::span<const std::byte> mine) = 0;

  /// Copies `data` of `root` to all ranks.
  [[nodiscard]] virtual expected<void> broadcast(std::span<std::byte> data, rank_id root) = 0;

  /// Both have one block for each rank. Block r of this rank's `input` becomes block `rank()` of rank r's `output`.
  [[nodiscard]] virtual expected<void> all_to_all(std::span<const std::byte> input, std::span<std::byte> output) = 0;

  /// Returns once every rank has called it. Each word becomes its maximum over all ranks.
  [[nodiscard]] virtual expected<void> barrier(std::span<std::uint64_t> words) = 0;
  [[nodiscard]] expected<void> barrier() { return barrier(std::span<std::uint64_t>{}); }

  /// Sends to one peer, which calls `receive` with the same size. Returns once `data` may be changed. Messages between
  /// two ranks stay in order.
  [[nodiscard]] virtual expected<void> send(rank_id peer, std::span<const std::byte> data) = 0;
  [[nodiscard]] virtual expected<void> receive(rank_id peer, std::span<std::byte> data) = 0;

  // -- collectives over logical shards

  /// The canonical sum over all `shards`, divided once by `divisor` at the root: the same bits for every world size and
  /// ownership. `ownership` has the shards of each rank and is the same on all ranks. `partials` are the sums of the
  /// `maximal_nodes` of this rank's range, as a `leaf_accumulator` of this layout produces them, each
  /// `layout.sums().size_bytes()` long. 16-bit floats are summed and sent as f32 and rounded once, at the root. This
  /// communicator made `result` for this layout. Reads and reduces part `part` only.
  [[nodiscard]] virtual expected<void> reduce_leaves(const bucket_layout& layout, std::uint32_t shards,
                                                     std::span<const shard_range> ownership,
                                                     std::span<const leaf_partial> partials, reduced_bucket& result,
                                                     std::uint64_t divisor = 1, std::size_t part = 0) = 0;

  /// Sums part `part` of one `contribution` (a bucket of `layout`) per rank in the transport's own order and divides by
  /// `divisor`. All ranks get the same bits; another world size, transport or run may give others.
  [[nodiscard]] virtual expected<void> all_reduce_fast(const bucket_layout& layout,
                                                       std::span<const std::byte> contribution, reduced_bucket& result,
                                                       std::uint64_t divisor = 1, std::size_t part = 0) = 0;

  // -- asynchronous calls

  /// Runs `call` on the group's own thread, after all calls started before. `call` makes calls of this communicator and
  /// returns the first error; whatever it refers to lives until it has ended. All ranks start the same calls in the
  /// same order. A direct call waits for all started ones. `abort` ends them all.
  [[nodiscard]] pending_call start(std::function<expected<void>()> call) { return calls_.start(std::move(call)); }

  /// Makes every pending and later call return `reason` immediately. From any thread; the first reason wins.
  virtual void abort(error reason) noexcept = 0;

  // -- the same with element types

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
  /// For implementations: call the first at the start of each call, the second first in the destructor.
  void wait_for_started_calls() { calls_.wait_until_idle(); }
  void stop_started_calls() { calls_.stop(); }

 private:
  call_queue calls_;
};

/// A group of one rank. It sends nothing and has the arithmetic of a larger group.
[[nodiscard]] std::unique_ptr<communicator> make_self_communicator(generation_id generation);

} // namespace troupe::collectives

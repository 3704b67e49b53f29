#pragma once

#include <troupe/collectives/bucket_layout.hpp>
#include <troupe/collectives/leaf_accumulator.hpp>
#include <troupe/collectives/reduction.hpp>
#include <troupe/collectives/summation_tree.hpp>
#include <troupe/dtype.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace troupe::collectives {

/// What a communicator has sent to its peers so far: payload, without the backend's own framing.
struct traffic {
  std::uint64_t sent_bytes = 0;
  std::uint64_t sent_messages = 0;

  bool operator==(const traffic&) const = default;
};

/// One generation's group of ranks. The calls block and are made from one thread, by all ranks in the same order and
/// with the same sizes; a rank that calls something else is found at the deadline. Only `abort` may be called from any
/// thread, at any time between construction and destruction.
///
/// Errors, of every call:
/// - `errc::invalid_argument`: the arguments do not fit together; nothing was sent, the group is unharmed.
/// - `errc::aborted`: a peer is gone; the message names operation and ranks.
/// - `errc::timed_out`: the deadline has passed; the message names operation, sequence number and missing ranks.
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

  /// The canonical sum over all `shards`: the same bits for every world size and ownership. `ownership` has each
  /// rank's shards, the same on all ranks; `partials` are the sums of the `maximal_nodes` of mine, as a
  /// `leaf_accumulator` gives them, each `layout.size_bytes()` long. `result` has the same size, starts on a 64-byte
  /// boundary and overlaps none of them.
  [[nodiscard]] virtual expected<void> reduce_leaves(const bucket_layout& layout, std::uint32_t shards,
                                                     std::span<const shard_range> ownership,
                                                     std::span<const leaf_partial> partials,
                                                     std::span<std::byte> result) = 0;

  /// Sums `bucket` over the ranks in place, in the order that suits the backend. All ranks get the same bits; another
  /// world size, backend or run may get others.
  [[nodiscard]] virtual expected<void> all_reduce_fast(const bucket_layout& layout, std::span<std::byte> bucket) = 0;

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
};

/// The group of one: nothing is sent, and the arithmetic is that of a larger group.
[[nodiscard]] std::unique_ptr<communicator> make_self_communicator(generation_id generation);

} // namespace troupe::collectives

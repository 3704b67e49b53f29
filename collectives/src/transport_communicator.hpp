#pragma once

#include "transport.hpp"

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/collectives/communicator.hpp>

#include <memory>
#include <vector>

namespace troupe::collectives {

/// The collectives, written once, over messages between two ranks.
class transport_communicator final : public communicator {
 public:
  using communicator::all_gather;
  using communicator::all_reduce;
  using communicator::all_to_all;
  using communicator::barrier;
  using communicator::broadcast;
  using communicator::reduce_scatter;

  transport_communicator(std::unique_ptr<transport> backend, generation_id generation);

  rank_id rank() const noexcept override { return rank_id{backend_->rank()}; }
  std::uint32_t world_size() const noexcept override { return backend_->world_size(); }
  generation_id generation() const noexcept override { return generation_; }
  traffic sent() const noexcept override { return sent_; }

  expected<void> all_reduce(dtype type, reduce_op op, std::span<std::byte> data) override;
  expected<void> reduce_scatter(dtype type, reduce_op op, std::span<const std::byte> input,
                                std::span<std::byte> output) override;
  expected<void> all_gather(std::span<const std::byte> input, std::span<std::byte> output) override;
  expected<std::vector<std::vector<std::byte>>> all_gather_bytes(std::span<const std::byte> mine) override;
  expected<void> broadcast(std::span<std::byte> data, rank_id root) override;
  expected<void> all_to_all(std::span<const std::byte> input, std::span<std::byte> output) override;
  expected<void> barrier(std::span<std::uint64_t> words) override;
  expected<void> send(rank_id peer, std::span<const std::byte> data) override;
  expected<void> receive(rank_id peer, std::span<std::byte> data) override;
  expected<void> reduce_leaves(const bucket_layout& layout, std::uint32_t shards,
                               std::span<const shard_range> ownership, std::span<const leaf_partial> partials,
                               std::span<std::byte> result) override;
  expected<void> all_reduce_fast(const bucket_layout& layout, std::span<std::byte> bucket) override;
  void abort(error reason) noexcept override { backend_->abort(std::move(reason)); }

 private:
  enum class kind : std::uint8_t;

  /// The plan of `reduce_leaves`, kept from step to step.
  struct leaves_plan {
    std::uint32_t shards = 0;
    std::vector<shard_range> ownership;
    finish_plan finish;
  };

  /// How one reduction is spread: the plan, who finishes which part, what to do with two elements.
  struct reduction {
    const finish_plan& plan;
    const bucket_layout& layout;
    reduce_op op;
    std::vector<byte_range> slices;
  };

  expected<void> begin(kind what, std::uint32_t peer = operation::every_peer);
  std::uint64_t tag(std::uint64_t size_bytes, std::uint32_t phase = 0) const noexcept;
  void post_send(std::uint32_t peer, const std::byte* data, std::uint64_t size_bytes, std::uint32_t phase = 0);
  transport::ticket post_receive(std::uint32_t peer, std::byte* data, std::uint64_t size_bytes,
                                 std::uint32_t phase = 0);

  expected<void> check_peer(rank_id peer) const;
  expected<void> refresh_leaves_plan(std::uint32_t shards, std::span<const shard_range> ownership);
  const finish_plan& rank_plan();

  expected<void> reduce_own_slice(const reduction& what, std::span<const std::byte* const> mine, std::byte* out);
  expected<void> finish_tree(const reduction& what, std::byte* out);
  expected<void> reduce_and_spread(const reduction& what, std::span<const std::byte* const> mine,
                                   std::span<std::byte> result);
  expected<void> all_reduce_as(kind what, const bucket_layout& layout, reduce_op op, std::span<std::byte> data);
  std::vector<byte_range> spread(const bucket_layout& layout, std::uint64_t size_bytes) const;
  void divide_slice(dtype type, reduce_op op, std::span<std::byte> slice) const noexcept;

  std::unique_ptr<transport> backend_;
  generation_id generation_;
  traffic sent_;

  kind kind_{};
  std::uint64_t sequence_ = 0;
  std::vector<std::uint64_t> sent_to_;
  std::vector<std::uint64_t> received_from_;
  /// The number in the tags of the current operation.
  std::uint64_t tag_number_ = 0;

  leaves_plan leaves_;
  std::unique_ptr<finish_plan> rank_plan_;

  /// An operand of the plan while the tree is finished: where it is, and the message that brings it.
  struct operand_state {
    const std::byte* data = nullptr;
    /// Writable memory of the same size; null for the caller's own partial sums.
    std::byte* scratch = nullptr;
    transport::ticket message = 0;
    bool pending = false;
  };
  std::vector<operand_state> operands_;
  aligned_buffer scratch_;
  aligned_buffer copy_;
  std::vector<std::uint64_t> words_;
};

} // namespace troupe::collectives

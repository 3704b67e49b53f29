#pragma once

#include "transport/transport.hpp"
#include "tree/tree_reduction.hpp"

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/collectives/communicator.hpp>

#include <memory>
#include <vector>

namespace troupe::collectives {

/// The collectives over messages between two ranks, written once for all transports.
class transport_communicator : public communicator {
 public:
  using communicator::all_gather;
  using communicator::all_reduce;
  using communicator::all_to_all;
  using communicator::barrier;
  using communicator::broadcast;
  using communicator::reduce_scatter;

  transport_communicator(std::unique_ptr<transport> underlying, generation_id generation);
  ~transport_communicator() override;

  rank_id rank() const noexcept override { return rank_id{transport_->rank()}; }
  std::uint32_t world_size() const noexcept override { return transport_->world_size(); }
  generation_id generation() const noexcept override { return generation_; }
  traffic sent() const noexcept override { return sent_; }
  flight_record record() const override { return transport_->record(); }
  void set_deadline(std::chrono::milliseconds deadline) noexcept override { transport_->set_deadline(deadline); }
  std::pmr::memory_resource& memory() noexcept override { return *std::pmr::new_delete_resource(); }
  expected<std::unique_ptr<reduced_bucket>> make_bucket(const bucket_layout& layout,
                                                        std::vector<byte_range> parts) override;

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
                               reduced_bucket& result, std::uint64_t divisor, std::size_t part) override;
  expected<void> all_reduce_fast(const bucket_layout& layout, std::span<const std::byte> contribution,
                                 reduced_bucket& result, std::uint64_t divisor, std::size_t part) override;
  void abort(error reason) noexcept override { transport_->abort(std::move(reason)); }

 protected:
  /// The plan of `reduce_leaves`, kept between steps.
  struct leaves_plan {
    std::uint32_t shards = 0;
    std::vector<shard_range> ownership;
    finish_plan finish;
  };

  /// One reduction: the plan, the slice that each rank finishes, the operation, and the division at the root.
  struct reduction {
    const finish_plan& plan;
    const bucket_layout& layout;
    /// `layout.sums()`.
    const bucket_layout& sums;
    reduce_op op;
    std::uint64_t divisor;
    /// The slices of `layout`, by member.
    std::vector<byte_range> slices;
    /// The ranks that take part; the plan's operands refer to them by their index here.
    std::span<const std::uint32_t> members;
    /// This rank's index.
    std::uint32_t me = 0;
    /// The offset in the bucket at which the operands and the result start.
    std::uint64_t origin = 0;

    [[nodiscard]] bool is_narrow() const noexcept { return sums.size_bytes() != layout.size_bytes(); }
    [[nodiscard]] byte_range in_sums(byte_range slice) const noexcept {
      return {layout.offset_in_sums(slice.first), layout.offset_in_sums(slice.last)};
    }
    [[nodiscard]] std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(members.size()); }
  };

  /// The input of a reduction into a bucket, after its arguments are checked.
  struct bucket_reduction {
    const bucket_layout& layout;
    /// `sums`: for `leaves_`. `contributions`: one per rank.
    operand_kind operands;
    /// Pointers to the start of each bucket.
    std::span<const std::byte* const> mine;
    std::uint64_t divisor;
    std::size_t part;
  };

  // -- overridden by communicators that can do better than messages

  [[nodiscard]] virtual expected<void> check_result(reduced_bucket& result, const bucket_layout& layout,
                                                    std::size_t part) const;
  [[nodiscard]] virtual expected<void> reduce_into(reduced_bucket& result, const bucket_reduction& what);
  /// Ends a call.
  virtual expected<void> over(expected<void> result);

  expected<void> begin(call_record call);
  std::uint64_t tag(std::uint64_t size_bytes, std::uint32_t phase = 0) const noexcept;
  void post_send(std::uint32_t peer, const std::byte* data, std::uint64_t size_bytes, std::uint32_t phase = 0);
  transport::ticket post_receive(std::uint32_t peer, std::byte* data, std::uint64_t size_bytes,
                                 std::uint32_t phase = 0);

  expected<void> check_peer(rank_id peer) const;
  expected<void> refresh_leaves_plan(std::uint32_t shards, std::span<const shard_range> ownership);
  const finish_plan& rank_plan();

  const finish_plan& plan_of(operand_kind operands);
  expected<void> reduce_bucket(call_record call, reduced_bucket& result, const bucket_reduction& what);
  expected<void> reduce_own_slice(const reduction& what, std::span<const std::byte* const> mine, std::byte* out);
  expected<void> finish_slice(const reduction& what, std::byte* out);
  expected<void> finish_tree(const reduction& what, std::byte* out);
  expected<void> reduce_and_spread(const reduction& what, std::span<const std::byte* const> mine, std::byte* result);
  static std::vector<byte_range> spread(byte_range part, std::size_t members);
  expected<void> spread_maximum(std::span<std::uint64_t> words, std::span<const std::uint32_t> members,
                                std::uint32_t me);

  std::unique_ptr<transport> transport_;
  generation_id generation_;
  traffic sent_;

  call_record call_;
  std::uint64_t sequence_ = 0;
  std::vector<std::uint64_t> sent_to_;
  std::vector<std::uint64_t> received_from_;
  leaves_plan leaves_;
  std::unique_ptr<finish_plan> rank_plan_;
  /// All ranks, as the members of a reduction.
  std::vector<std::uint32_t> everybody_;

  /// An operand of the plan while the tree is finished: its location, and the message that brings it.
  struct operand_state {
    const std::byte* data = nullptr;
    /// Writable memory of the same size; null for the caller's own partial sums.
    std::byte* scratch = nullptr;
    transport::ticket message = 0;
    bool pending = false;
  };
  std::vector<operand_state> operands_;
  std::vector<const std::byte*> mine_;
  aligned_buffer scratch_;
  /// This rank's contribution, if the result replaces it or if it has to be widened.
  aligned_buffer copy_;
  /// This rank's finished slice before rounding.
  aligned_buffer unrounded_;
  std::vector<std::uint64_t> words_;
};

} // namespace troupe::collectives

#pragma once

#include "transport/call_checks.hpp"
#include "transport/message_reducer.hpp"
#include "tree/tree_reduction.hpp"

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/collectives/communicator.hpp>

#include <chrono>
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

  rank_id rank() const noexcept override { return rank_id{messages_.underlying().rank()}; }
  std::uint32_t world_size() const noexcept override { return messages_.underlying().world_size(); }
  generation_id generation() const noexcept override { return generation_; }
  traffic sent() const noexcept override { return messages_.sent(); }
  flight_record record() const override { return messages_.underlying().record(); }
  std::vector<rank_id> unanswering() const override { return messages_.underlying().unanswering(); }
  void set_deadline(std::chrono::milliseconds deadline) noexcept override {
    messages_.underlying().set_deadline(deadline);
  }
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
  void abort(error reason) noexcept override { messages_.underlying().abort(std::move(reason)); }

 protected:
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

  expected<void> begin(const call_record& call);
  expected<void> check_peer(rank_id peer) const;
  const finish_plan& rank_plan();

  const finish_plan& plan_of(operand_kind operands);
  expected<void> reduce_bucket(const call_record& call, reduced_bucket& result, const bucket_reduction& what);
  /// `latency` is what the same members have agreed on before, and agree on now; 0: nothing yet.
  expected<void> spread_maximum(std::span<std::uint64_t> words, std::span<const std::uint32_t> members,
                                std::uint32_t me, std::chrono::nanoseconds& latency);

  call_messages messages_;
  message_reducer over_messages_{messages_};
  const generation_id generation_;
  leaves_plan leaves_;
  std::unique_ptr<finish_plan> rank_plan_;
  /// All ranks, as the members of a reduction.
  std::vector<std::uint32_t> everybody_;

  std::vector<const std::byte*> mine_;
  /// This rank's contribution, if the result replaces it or if it has to be widened.
  aligned_buffer copy_;
  std::vector<std::uint64_t> words_;
  /// The longest of a short message between two ranks, as all ranks have agreed.
  std::chrono::nanoseconds latency_{0};
};

} // namespace troupe::collectives

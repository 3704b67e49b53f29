#include "transport/communicator.hpp"
#include "shm/bucket.hpp"
#include "shm/group.hpp"
#include "shm/reducer.hpp"
#include "shm/transport.hpp"
#include "transport/call_checks.hpp"

#include <troupe/collectives/shm_communicator.hpp>

#include <utility>

namespace troupe::collectives {

namespace {

/// Reductions and barriers read the peers' memory directly; calls that only move bytes use messages.
class shm_communicator final : public transport_communicator {
 public:
  using communicator::all_reduce;
  using communicator::barrier;

  shm_communicator(std::shared_ptr<shm_group> group, generation_id generation)
      : transport_communicator(std::make_unique<shm_transport>(group), generation),
        group_(std::move(group)),
        reducer_(group_) {}

  ~shm_communicator() override {
    stop_started_calls();
    group_->leave();
  }

  traffic sent() const noexcept override {
    auto result = transport_communicator::sent();
    result.sent_bytes += reducer_.read_bytes();
    return result;
  }

  std::pmr::memory_resource& memory() noexcept override { return group_->members().process_pool(); }

  expected<std::unique_ptr<reduced_bucket>> make_bucket(const bucket_layout& layout,
                                                        std::vector<byte_range> parts) override {
    TROUPE_TRY(check_parts(layout, parts));
    shm_bucket::slice_table slices;
    for (auto part : parts)
      slices.push_back(reducer_.spread(part));
    return shm_bucket::make(group_, layout.size_bytes(), std::move(parts), std::move(slices));
  }

  expected<void> all_reduce(dtype type, reduce_op op, std::span<std::byte> data) override {
    TROUPE_TRY(check_elements(type, data.size()));
    if (auto begun = begin(reduction_call(call_kind::all_reduce, type, op, data.size())); !begun || data.empty())
      return over(std::move(begun));
    const auto& layout = layout_of({type, data.size() / size_of(type)});
    const auto divisor = op == reduce_op::mean ? world_size() : std::uint64_t{1};
    return over(reducer_.all_reduce(
        messages_.call(),
        {rank_plan(), layout, sums_of(layout), op, divisor, operand_kind::contributions, root_kind::final_result},
        data));
  }

  expected<void> barrier(std::span<std::uint64_t> words) override {
    if (words.size() > shm::max_words)
      return transport_communicator::barrier(words);
    if (auto begun = begin(moving_call(call_kind::barrier, words.size_bytes())); !begun)
      return over(std::move(begun));
    return over(group_->post_maximum(messages_.call(), words));
  }

 private:
  expected<void> check_result(reduced_bucket& result, const bucket_layout& layout, std::size_t part) const override {
    return check_made_here<shm_bucket>(result, layout, part);
  }

  expected<void> reduce_into(reduced_bucket& result, const bucket_reduction& what) override {
    auto* bucket = static_cast<shm_bucket*>(&result);
    return reducer_.reduce(messages_.call(),
                           {plan_of(what.operands), what.layout, sums_of(what.layout), reduce_op::sum, what.divisor,
                            what.operands, root_kind::final_result},
                           what.mine, what.part, {&bucket, 1});
  }

  // Both are usually those of the last call: making them takes longer than a small call.

  const bucket_layout& layout_of(bucket_segment elements) {
    if (elements_.segments().empty() || elements_.segments()[0] != elements)
      elements_ = bucket_layout{{elements}};
    return elements_;
  }

  const bucket_layout& sums_of(const bucket_layout& layout) {
    if (summed_ != layout) {
      summed_ = layout;
      sums_ = layout.sums();
    }
    return sums_;
  }

  expected<void> over(expected<void> result) override {
    group_->end();
    return result;
  }

  std::shared_ptr<shm_group> group_;
  shm_reducer reducer_;
  bucket_layout elements_;
  bucket_layout summed_;
  bucket_layout sums_;
};

} // namespace

expected<std::unique_ptr<communicator>> make_shm_communicator(shm_options options,
                                                              const descriptor_exchange& exchange) {
  TROUPE_TRY(auto group, shm_group::connect(options, exchange));
  return std::make_unique<shm_communicator>(std::move(group), options.generation);
}

} // namespace troupe::collectives

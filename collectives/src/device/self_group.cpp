#include "device/basic_group.hpp"

namespace troupe::collectives {

namespace {

class self_device_group final : public basic_device_group {
 public:
  self_device_group(std::shared_ptr<device> where, generation_id generation, hang_policy on_hang)
      : basic_device_group(std::move(where), rank_id{0}, 1, generation, default_deadline, "self", std::move(on_hang)),
        widened_(this->where()) {}
  ~self_device_group() override { stop(); }

  using basic_device_group::open;
  bool can_be_predecessor() const noexcept override { return false; }

 private:
  expected<void> reduce_exactly(const reduction& what) override {
    const auto range = what.range();
    std::vector<const std::byte*> operands;
    for (const auto& operand : what.operands)
      operands.push_back(operand.data + what.layout.offset_in_sums(range.first));
    TROUPE_TRY(what.ready->hold(stream_));
    TROUPE_TRY(arithmetic_.reduce(*what.leaves.finish, what.layout, what.divisor, operands, range,
                                  what.result->data() + range.first, stream_.handle()));
    return expect(stream_.handle(), what, waits_for::own_gpu);
  }

  expected<void> reduce_fast(const reduction& what) override {
    const auto range = what.range();
    TROUPE_TRY(auto sum, widened_.reserve(what.layout.sums().size_bytes()));
    TROUPE_TRY(what.ready->hold(stream_));
    TROUPE_TRY(arithmetic_.widen(what.layout, what.operands[0].data + range.first, range, sum, stream_.handle()));
    TROUPE_TRY(
        arithmetic_.finish(what.layout, what.divisor, sum, range, what.result->data() + range.first, stream_.handle()));
    return expect(stream_.handle(), what, waits_for::own_gpu);
  }

  device_scratch widened_;
};

} // namespace

expected<std::unique_ptr<device_group>> make_self_device_group(std::shared_ptr<device> where, generation_id generation,
                                                               hang_policy on_hang) {
  auto group = std::make_unique<self_device_group>(std::move(where), generation, std::move(on_hang));
  TROUPE_TRY(group->open());
  return group;
}

} // namespace troupe::collectives

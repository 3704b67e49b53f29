#include <troupe/collectives/accumulation_plan.hpp>

#include <fmt/format.h>
#include <stdexcept>

namespace troupe::collectives {

void accumulation_plan::begin(shard_range range) {
  if (range.first > range.last || range.last > shards_)
    throw std::logic_error{
        fmt::format("an accumulator's range [{}, {}) is not inside the {} shards", range.first, range.last, shards_)};
  range_ = range;
  cursor_ = range.first;
  stage_ = stage::open;
  operations_.clear();
  stack_.clear();
  free_.clear();
  for (std::size_t i = 0; i < buffers_; ++i)
    free_.push_back(i);
}

void accumulation_plan::advance_to(shard_id shard) {
  if (is_closed())
    throw std::logic_error{
        fmt::format("shard {} comes after the accumulator's step was closed; call begin first", shard)};
  if (!range_.contains(shard) || shard.value < cursor_)
    throw std::logic_error{
        fmt::format("shard {} is outside the accumulator's range or out of order; the next is {} of [{}, {})", shard,
                    cursor_, range_.first, range_.last)};
  plan_contribution();
  plan_zeros_until(shard.value);
}

std::size_t accumulation_plan::open_contribution() {
  operations_.clear();
  push_leaf();
  stage_ = stage::contributed;
  return stack_.back().buffer;
}

void accumulation_plan::close() {
  if (is_closed())
    throw std::logic_error{"the accumulator's step is closed already; call begin first"};
  plan_contribution();
  plan_zeros_until(range_.last);
  stage_ = stage::closed;
}

void accumulation_plan::push_leaf() {
  if (free_.empty())
    free_.push_back(buffers_++);
  stack_.push_back({{0, cursor_++}, free_.back()});
  free_.pop_back();
}

/// Plans the operations that were waiting for the contribution on top of the stack.
void accumulation_plan::plan_contribution() {
  if (stage_ != stage::contributed)
    return;
  stage_ = stage::open;
  if (widens_)
    operations_.push_back({operation::kind::widen, stack_.back().buffer, 0});
  plan_joins();
}

void accumulation_plan::plan_zeros_until(std::uint32_t shard) {
  while (cursor_ < shard) {
    push_leaf();
    operations_.push_back({operation::kind::clear, stack_.back().buffer, 0});
    plan_joins();
  }
}

void accumulation_plan::plan_joins() {
  while (!stack_.empty() && stack_.back().node.level < root_level(shards_)) {
    auto& top = stack_.back();
    const auto parent = tree_node{top.node.level + 1, top.node.index / 2};
    if (top.node.index % 2 == 0) {
      if (covered_shards(shards_, {top.node.level, top.node.index + 1}).size() != 0)
        return;
      top.node = parent;
      continue;
    }
    if (stack_.size() < 2 || stack_[stack_.size() - 2].node != tree_node{top.node.level, top.node.index - 1})
      return;
    auto& left = stack_[stack_.size() - 2];
    operations_.push_back({operation::kind::add, left.buffer, top.buffer});
    left.node = parent;
    // The next user of this buffer is planned, and executed, after this addition.
    free_.push_back(top.buffer);
    stack_.pop_back();
  }
}

} // namespace troupe::collectives

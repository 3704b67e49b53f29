#include <troupe/collectives/leaf_accumulator.hpp>
#include <troupe/collectives/reduction.hpp>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace troupe::collectives {

expected<leaf_accumulator> leaf_accumulator::make(bucket_layout layout, std::uint32_t shards) {
  if (shards == 0)
    return fail(errc::invalid_argument, "0 shards have no contributions to add; use at least one shard");
  if (auto valid = check_reducible(layout); !valid)
    return fail(std::move(valid.error()));
  return leaf_accumulator{std::move(layout), shards};
}

void leaf_accumulator::begin(shard_range range) {
  if (range.first > range.last || range.last > shards_)
    throw std::logic_error{"leaf_accumulator: the range [" + std::to_string(range.first) + ", " +
                           std::to_string(range.last) + ") is not inside the " + std::to_string(shards_) + " shards"};
  range_ = range;
  cursor_ = range.first;
  stack_.clear();
  partials_.clear();
  free_.clear();
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    free_.push_back(i);
}

std::span<std::byte> leaf_accumulator::next(shard_id shard) {
  if (!range_.contains(shard) || shard.value < cursor_)
    throw std::logic_error{"leaf_accumulator: shard " + std::to_string(shard.value) +
                           " is outside the range or out of order; the next is " + std::to_string(cursor_) + " of [" +
                           std::to_string(range_.first) + ", " + std::to_string(range_.last) + ")"};
  while (cursor_ <= shard.value)
    push_leaf();
  return buffers_[stack_.back().buffer].bytes().first(layout_.size_bytes());
}

void leaf_accumulator::end() {
  while (cursor_ < range_.last)
    push_leaf();
  join();
  for (const auto& x : stack_)
    partials_.push_back({x.node, buffers_[x.buffer].data()});
}

void leaf_accumulator::push_leaf() {
  join();
  const auto buffer = take_buffer();
  std::fill_n(buffers_[buffer].data(), layout_.size_bytes(), std::byte{0});
  stack_.push_back({{0, cursor_++}, buffer});
}

void leaf_accumulator::join() {
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
    auto* target = buffers_[left.buffer].data();
    combine(layout_, {0, layout_.size_bytes()}, reduce_op::sum, target, target, buffers_[top.buffer].data());
    left.node = parent;
    free_.push_back(top.buffer);
    stack_.pop_back();
  }
}

std::size_t leaf_accumulator::take_buffer() {
  if (free_.empty()) {
    // At least one line, so that even an empty bucket's partial sums are distinct addresses.
    buffers_.emplace_back(std::max<std::size_t>(layout_.size_bytes(), alignment_bytes));
    return buffers_.size() - 1;
  }
  const auto result = free_.back();
  free_.pop_back();
  return result;
}

} // namespace troupe::collectives

#include <troupe/collectives/leaf_accumulator.hpp>
#include <troupe/collectives/reduction.hpp>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace troupe::collectives {

namespace {

/// A contribution goes up through all its joins in pieces of this size, which stay in the cache meanwhile.
constexpr std::uint64_t block_bytes = 16 << 10;

std::string to_text(byte_range range) {
  std::string text = "[";
  // In pieces: g++ 12 warns of an overlap that is none when a literal stands first.
  return text.append(std::to_string(range.first)).append(", ").append(std::to_string(range.last)).append(")");
}

/// Puts `range` among the disjoint ones in `ranges`; false if it overlaps one.
bool insert(std::vector<byte_range>& ranges, byte_range range) {
  auto right = std::lower_bound(ranges.begin(), ranges.end(), range);
  const auto touches_left = right != ranges.begin() && (right - 1)->last >= range.first;
  if ((touches_left && (right - 1)->last > range.first) || (right != ranges.end() && right->first < range.last))
    return false;
  const auto touches_right = right != ranges.end() && right->first == range.last;
  if (touches_left && touches_right) {
    (right - 1)->last = right->last;
    ranges.erase(right);
  } else if (touches_left) {
    (right - 1)->last = range.last;
  } else if (touches_right) {
    right->first = range.first;
  } else {
    ranges.insert(right, range);
  }
  return true;
}

} // namespace

expected<leaf_accumulator> leaf_accumulator::make(bucket_layout layout, std::uint32_t shards,
                                                  std::pmr::memory_resource& memory) {
  if (shards == 0)
    return fail(errc::invalid_argument, "0 shards have no contributions to add; use at least one shard");
  if (auto valid = check_reducible(layout); !valid)
    return fail(std::move(valid.error()));
  return leaf_accumulator{std::move(layout), shards, memory};
}

leaf_accumulator::leaf_accumulator(bucket_layout layout, std::uint32_t shards, std::pmr::memory_resource& memory)
    : layout_(std::move(layout)), sums_(layout_.sums()), shards_(shards), memory_(&memory) {}

void leaf_accumulator::begin(shard_range range) {
  if (range.first > range.last || range.last > shards_)
    throw std::logic_error{"leaf_accumulator: the range [" + std::to_string(range.first) + ", " +
                           std::to_string(range.last) + ") is not inside the " + std::to_string(shards_) + " shards"};
  range_ = range;
  cursor_ = range.first;
  contributed_ = closed_ = false;
  plan_.clear();
  finished_.clear();
  stack_.clear();
  partials_.clear();
  free_.clear();
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    free_.push_back(i);
}

std::span<std::byte> leaf_accumulator::next(shard_id shard) {
  if (closed_)
    throw std::logic_error{"leaf_accumulator: shard " + std::to_string(shard.value) +
                           " comes after the step was closed; call begin first"};
  if (!range_.contains(shard) || shard.value < cursor_)
    throw std::logic_error{"leaf_accumulator: shard " + std::to_string(shard.value) +
                           " is outside the range or out of order; the next is " + std::to_string(cursor_) + " of [" +
                           std::to_string(range_.first) + ", " + std::to_string(range_.last) + ")"};
  plan_contribution();
  plan_zeros_until(shard.value);
  run({0, layout_.size_bytes()});
  plan_.clear();
  stack_.push_back({{0, cursor_++}, take_buffer()});
  contributed_ = true;
  auto& bucket = is_narrow() ? contribution_ : buffers_[stack_.back().buffer];
  bucket.reserve(layout_.size_bytes());
  std::fill_n(bucket.data(), layout_.size_bytes(), std::byte{0});
  return bucket.bytes().first(layout_.size_bytes());
}

void leaf_accumulator::end() {
  if (!closed_)
    close();
  std::uint64_t next = 0;
  for (const auto& done : finished_) {
    run({next, done.first});
    next = done.last;
  }
  run({next, layout_.size_bytes()});
  finished_.assign(1, {0, layout_.size_bytes()});
}

void leaf_accumulator::close() {
  if (closed_)
    throw std::logic_error{"leaf_accumulator: the step is closed already; call begin first"};
  closed_ = true;
  plan_contribution();
  plan_zeros_until(range_.last);
  for (const auto& x : stack_)
    partials_.push_back({x.node, buffers_[x.buffer].data()});
}

void leaf_accumulator::finish(byte_range range) {
  if (!closed_)
    throw std::logic_error{"leaf_accumulator: bytes " + to_text(range) +
                           " are finished before the step is closed; call close first"};
  if (range.first > range.last || range.last > layout_.size_bytes() || range.first % alignment_bytes != 0 ||
      range.last % alignment_bytes != 0)
    throw std::logic_error{"leaf_accumulator: bytes " + to_text(range) + " are not whole lines of " +
                           std::to_string(alignment_bytes) + " bytes of a bucket of " +
                           std::to_string(layout_.size_bytes()) + " bytes"};
  if (range.first == range.last)
    return;
  if (!insert(finished_, range))
    throw std::logic_error{"leaf_accumulator: some of the bytes " + to_text(range) + " are finished already"};
  run(range);
}

/// Plans what has waited for the contribution on top of the stack.
void leaf_accumulator::plan_contribution() {
  if (!std::exchange(contributed_, false))
    return;
  if (is_narrow())
    plan_.push_back({operation::kind::widen, stack_.back().buffer, 0});
  plan_joins();
}

void leaf_accumulator::plan_zeros_until(std::uint32_t shard) {
  while (cursor_ < shard) {
    stack_.push_back({{0, cursor_++}, take_buffer()});
    plan_.push_back({operation::kind::clear, stack_.back().buffer, 0});
    plan_joins();
  }
}

void leaf_accumulator::plan_joins() {
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
    plan_.push_back({operation::kind::add, left.buffer, top.buffer});
    left.node = parent;
    // Whoever takes it next is planned, or run, after this addition.
    free_.push_back(top.buffer);
    stack_.pop_back();
  }
}

/// Does what is planned to the part `range` of a contribution, and the sums that correspond to it.
void leaf_accumulator::run(byte_range range) noexcept {
  for (auto first = range.first; first < range.last && !plan_.empty();) {
    const byte_range block{first, std::min(first + block_bytes, range.last)};
    const byte_range sums{layout_.offset_in_sums(block.first), layout_.offset_in_sums(block.last)};
    for (const auto& x : plan_) {
      auto* target = buffers_[x.target].data() + sums.first;
      switch (x.what) {
      case operation::kind::widen:
        widen(layout_, block, target, contribution_.data() + block.first);
        break;
      case operation::kind::clear:
        std::fill_n(target, sums.size_bytes(), std::byte{0});
        break;
      case operation::kind::add:
        combine(sums_, sums, reduce_op::sum, target, target, buffers_[x.source].data() + sums.first);
        break;
      }
    }
    first = block.last;
  }
}

std::size_t leaf_accumulator::take_buffer() {
  if (free_.empty()) {
    // At least one line, so that even an empty bucket's partial sums are distinct addresses.
    buffers_.emplace_back(std::max<std::size_t>(sums_.size_bytes(), alignment_bytes), *memory_);
    return buffers_.size() - 1;
  }
  const auto result = free_.back();
  free_.pop_back();
  return result;
}

} // namespace troupe::collectives

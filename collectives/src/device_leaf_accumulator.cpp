#include "device_tree.hpp"

#include <troupe/collectives/device_group.hpp>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace troupe::collectives {

/// The plan of the additions is that of `leaf_accumulator`; here each operation is a kernel over the whole range, since
/// no cache would keep a block until the next.
struct device_leaf_accumulator::state {
  struct entry {
    tree_node node;
    std::size_t buffer;
  };

  struct operation {
    enum class kind : std::uint8_t { widen, clear, add };
    kind what;
    std::size_t target;
    std::size_t source;
  };

  std::shared_ptr<device> where;
  bucket_layout layout;
  bucket_layout sums;
  std::uint32_t shards;
  allocator allocate;
  device_tree arithmetic;

  shard_range range = {};
  std::uint32_t cursor = 0;
  bool contributed = false;
  bool closed = false;
  std::vector<operation> plan = {};
  std::vector<byte_range> finished = {};
  device_memory contribution = {};
  std::vector<device_memory> buffers = {};
  std::vector<std::size_t> free = {};
  std::vector<entry> stack = {};
  std::vector<leaf_partial> partials = {};

  [[nodiscard]] bool is_narrow() const noexcept { return sums.size_bytes() != layout.size_bytes(); }

  expected<std::size_t> take_buffer() {
    if (!free.empty()) {
      const auto result = free.back();
      free.pop_back();
      return result;
    }
    auto made = allocate(std::max<std::uint64_t>(sums.size_bytes(), alignment_bytes));
    if (!made)
      return fail(std::move(made.error()));
    buffers.push_back(std::move(*made));
    return buffers.size() - 1;
  }

  expected<void> push_leaf() {
    auto buffer = take_buffer();
    if (!buffer)
      return fail(std::move(buffer.error()));
    stack.push_back({{0, cursor++}, *buffer});
    return {};
  }

  void plan_contribution() {
    if (!std::exchange(contributed, false))
      return;
    if (is_narrow())
      plan.push_back({operation::kind::widen, stack.back().buffer, 0});
    plan_joins();
  }

  expected<void> plan_zeros_until(std::uint32_t shard) {
    while (cursor < shard) {
      if (auto pushed = push_leaf(); !pushed)
        return pushed;
      plan.push_back({operation::kind::clear, stack.back().buffer, 0});
      plan_joins();
    }
    return {};
  }

  void plan_joins() {
    while (!stack.empty() && stack.back().node.level < root_level(shards)) {
      auto& top = stack.back();
      const auto parent = tree_node{top.node.level + 1, top.node.index / 2};
      if (top.node.index % 2 == 0) {
        if (covered_shards(shards, {top.node.level, top.node.index + 1}).size() != 0)
          return;
        top.node = parent;
        continue;
      }
      if (stack.size() < 2 || stack[stack.size() - 2].node != tree_node{top.node.level, top.node.index - 1})
        return;
      auto& left = stack[stack.size() - 2];
      plan.push_back({operation::kind::add, left.buffer, top.buffer});
      left.node = parent;
      free.push_back(top.buffer);
      stack.pop_back();
    }
  }

  expected<void> run(byte_range part, const device_stream& stream) {
    const byte_range part_in_sums{layout.offset_in_sums(part.first), layout.offset_in_sums(part.last)};
    if (part_in_sums.size_bytes() == 0)
      return {};
    for (const auto& x : plan)
      if (auto put = run(x, part, part_in_sums, stream); !put)
        return put;
    return {};
  }

  expected<void> run(const operation& x, byte_range part, byte_range part_in_sums, const device_stream& stream) {
    auto* target = buffers[x.target].data() + part_in_sums.first;
    switch (x.what) {
    case operation::kind::widen:
      return arithmetic.widen(layout, contribution.data() + part.first, part, target, stream.handle());
    case operation::kind::clear:
      return where->clear(target, part_in_sums.size_bytes(), stream.handle());
    case operation::kind::add: {
      const std::byte* operands[] = {target, buffers[x.source].data() + part_in_sums.first};
      return arithmetic.add(sums, operands, part_in_sums, target, stream.handle());
    }
    }
    return {};
  }
};

device_leaf_accumulator::device_leaf_accumulator(std::unique_ptr<state> made) : state_(std::move(made)) {}
device_leaf_accumulator::device_leaf_accumulator(device_leaf_accumulator&&) noexcept = default;
device_leaf_accumulator& device_leaf_accumulator::operator=(device_leaf_accumulator&&) noexcept = default;
device_leaf_accumulator::~device_leaf_accumulator() = default;

expected<device_leaf_accumulator> device_leaf_accumulator::make(std::shared_ptr<device> where, bucket_layout layout,
                                                                std::uint32_t shards, allocator allocate) {
  if (shards == 0)
    return fail(errc::invalid_argument, "0 shards have no contributions to add; use at least one shard");
  if (auto valid = check_reducible(layout); !valid)
    return fail(std::move(valid.error()));
  if (!allocate)
    allocate = [where](std::uint64_t size_bytes) { return device_memory::make(where, size_bytes); };
  auto sums = layout.sums();
  auto arithmetic = device_tree{where};
  return device_leaf_accumulator{std::unique_ptr<state>(new state{std::move(where), std::move(layout), std::move(sums),
                                                                  shards, std::move(allocate), std::move(arithmetic)})};
}

void device_leaf_accumulator::begin(shard_range range) {
  auto& x = *state_;
  if (range.first > range.last || range.last > x.shards)
    throw std::logic_error{"device_leaf_accumulator: the range [" + std::to_string(range.first) + ", " +
                           std::to_string(range.last) + ") is not inside the " + std::to_string(x.shards) + " shards"};
  x.range = range;
  x.cursor = range.first;
  x.contributed = x.closed = false;
  x.plan.clear();
  x.finished.clear();
  x.stack.clear();
  x.partials.clear();
  x.free.clear();
  for (std::size_t i = 0; i < x.buffers.size(); ++i)
    x.free.push_back(i);
}

expected<std::span<std::byte>> device_leaf_accumulator::next(shard_id shard, const device_stream& stream) {
  auto& x = *state_;
  if (x.closed)
    throw std::logic_error{"device_leaf_accumulator: shard " + std::to_string(shard.value) +
                           " comes after the step was closed; call begin first"};
  if (!x.range.contains(shard) || shard.value < x.cursor)
    throw std::logic_error{"device_leaf_accumulator: shard " + std::to_string(shard.value) +
                           " is outside the range or out of order; the next is " + std::to_string(x.cursor) + " of [" +
                           std::to_string(x.range.first) + ", " + std::to_string(x.range.last) + ")"};
  x.plan_contribution();
  if (auto planned = x.plan_zeros_until(shard.value); !planned)
    return fail(std::move(planned.error()));
  if (auto put = x.run({0, x.layout.size_bytes()}, stream); !put)
    return fail(std::move(put.error()));
  x.plan.clear();
  if (auto pushed = x.push_leaf(); !pushed)
    return fail(std::move(pushed.error()));
  x.contributed = true;
  const auto size_bytes = x.layout.size_bytes();
  if (x.is_narrow() && x.contribution.size_bytes() < size_bytes) {
    auto made = device_memory::make(x.where, size_bytes);
    if (!made)
      return fail(std::move(made.error()));
    x.contribution = std::move(*made);
  }
  auto* data = x.is_narrow() ? x.contribution.data() : x.buffers[x.stack.back().buffer].data();
  if (auto put = x.where->clear(data, size_bytes, stream.handle()); !put)
    return fail(std::move(put.error()));
  return std::span{data, size_bytes};
}

expected<void> device_leaf_accumulator::close(const device_stream&) {
  auto& x = *state_;
  if (x.closed)
    throw std::logic_error{"device_leaf_accumulator: the step is closed already; call begin first"};
  x.closed = true;
  x.plan_contribution();
  if (auto planned = x.plan_zeros_until(x.range.last); !planned)
    return planned;
  for (const auto& entry : x.stack)
    x.partials.push_back({entry.node, x.buffers[entry.buffer].data()});
  return {};
}

expected<void> device_leaf_accumulator::finish(byte_range range, const device_stream& stream) {
  auto& x = *state_;
  const auto size_bytes = x.layout.size_bytes();
  const auto overlaps = [range](byte_range other) { return range.first < other.last && other.first < range.last; };
  if (!x.closed || range.first > range.last || range.last > size_bytes || range.first % alignment_bytes != 0 ||
      range.last % alignment_bytes != 0 || std::ranges::any_of(x.finished, overlaps))
    throw std::logic_error{"device_leaf_accumulator: bytes [" + std::to_string(range.first) + ", " +
                           std::to_string(range.last) +
                           ") are finished before close, or twice, or are not whole lines "
                           "of a bucket of " +
                           std::to_string(size_bytes) + " bytes"};
  if (range.size_bytes() == 0)
    return {};
  x.finished.push_back(range);
  return x.run(range, stream);
}

expected<void> device_leaf_accumulator::end(const device_stream& stream) {
  auto& x = *state_;
  if (!x.closed)
    if (auto closed = close(stream); !closed)
      return closed;
  std::ranges::sort(x.finished);
  std::uint64_t next = 0;
  for (const auto& done : x.finished) {
    if (auto put = x.run({next, done.first}, stream); !put)
      return put;
    next = done.last;
  }
  if (auto put = x.run({next, x.layout.size_bytes()}, stream); !put)
    return put;
  x.finished.assign(1, {0, x.layout.size_bytes()});
  return {};
}

std::span<const leaf_partial> device_leaf_accumulator::partials() const noexcept {
  return state_->partials;
}

const bucket_layout& device_leaf_accumulator::layout() const noexcept {
  return state_->layout;
}

std::uint32_t device_leaf_accumulator::shards() const noexcept {
  return state_->shards;
}

} // namespace troupe::collectives

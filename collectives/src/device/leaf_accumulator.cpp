#include "device/tree.hpp"

#include <troupe/collectives/device_group.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <stdexcept>
#include <utility>

namespace troupe::collectives {

/// Each operation of the plan is one kernel over the whole range: no cache would hold a block until the next one.
struct device_leaf_accumulator::state {
  std::shared_ptr<device> where;
  bucket_layout layout;
  bucket_layout sums;
  accumulation_plan plan;
  allocator allocate;
  device_tree arithmetic;

  std::vector<byte_range> finished = {};
  device_memory contribution = {};
  std::vector<device_memory> buffers = {};
  std::vector<leaf_partial> partials = {};

  [[nodiscard]] bool is_narrow() const noexcept { return sums.size_bytes() != layout.size_bytes(); }

  /// Allocates all buffers that the plan refers to.
  expected<void> make_buffers() {
    while (buffers.size() < plan.buffers()) {
      TROUPE_TRY(auto made, allocate(std::max<std::uint64_t>(sums.size_bytes(), alignment_bytes)));
      buffers.push_back(std::move(made));
    }
    return {};
  }

  expected<void> run(byte_range part, const device_stream& stream) {
    const byte_range part_in_sums{layout.offset_in_sums(part.first), layout.offset_in_sums(part.last)};
    if (part_in_sums.size_bytes() == 0)
      return {};
    for (const auto& x : plan.operations())
      TROUPE_TRY(run(x, part, part_in_sums, stream));
    return {};
  }

  expected<void> run(const accumulation_plan::operation& x, byte_range part, byte_range part_in_sums,
                     const device_stream& stream) {
    auto* target = buffers[x.target].address() + part_in_sums.first;
    switch (x.what) {
    case accumulation_plan::operation::kind::widen:
      return arithmetic.widen(layout, contribution.address() + part.first, part, target, stream.handle());
    case accumulation_plan::operation::kind::clear:
      return where->clear(target, part_in_sums.size_bytes(), stream.handle());
    case accumulation_plan::operation::kind::add: {
      const std::byte* operands[] = {target, buffers[x.source].address() + part_in_sums.first};
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
    return fail(errc::invalid_argument, "an accumulator needs at least one shard");
  TROUPE_TRY(check_reducible(layout));
  if (!allocate)
    allocate = [where](std::uint64_t size_bytes) { return device_memory::make(where, size_bytes); };
  auto sums = layout.sums();
  auto plan = accumulation_plan{shards, sums.size_bytes() != layout.size_bytes()};
  auto arithmetic = device_tree{where};
  return device_leaf_accumulator{
      std::unique_ptr<state>(new state{std::move(where), std::move(layout), std::move(sums), std::move(plan),
                                       std::move(allocate), std::move(arithmetic)})};
}

void device_leaf_accumulator::begin(shard_range range) {
  state_->plan.begin(range);
  state_->finished.clear();
  state_->partials.clear();
}

expected<device_span<std::byte>> device_leaf_accumulator::next(shard_id shard, const device_stream& stream) {
  auto& x = *state_;
  x.plan.advance_to(shard);
  TROUPE_TRY(x.make_buffers());
  TROUPE_TRY(x.run({0, x.layout.size_bytes()}, stream));
  const auto leaf = x.plan.open_contribution();
  TROUPE_TRY(x.make_buffers());
  const auto size_bytes = x.layout.size_bytes();
  if (x.is_narrow() && x.contribution.size_bytes() < size_bytes) {
    TROUPE_TRY(auto made, device_memory::make(x.where, size_bytes));
    x.contribution = std::move(made);
  }
  auto* data = x.is_narrow() ? x.contribution.address() : x.buffers[leaf].address();
  TROUPE_TRY(x.where->clear(data, size_bytes, stream.handle()));
  return device_span{data, size_bytes};
}

expected<void> device_leaf_accumulator::close(const device_stream&) {
  auto& x = *state_;
  x.plan.close();
  TROUPE_TRY(x.make_buffers());
  for (const auto& entry : x.plan.sums())
    x.partials.push_back({entry.node, x.buffers[entry.buffer].address()});
  return {};
}

expected<void> device_leaf_accumulator::finish(byte_range range, const device_stream& stream) {
  auto& x = *state_;
  const auto size_bytes = x.layout.size_bytes();
  const auto overlaps = [range](byte_range other) { return range.first < other.last && other.first < range.last; };
  if (!x.plan.is_closed() || range.first > range.last || range.last > size_bytes ||
      range.first % alignment_bytes != 0 || range.last % alignment_bytes != 0 ||
      std::ranges::any_of(x.finished, overlaps))
    throw std::logic_error{fmt::format("device_leaf_accumulator: bytes [{}, {}) were finished before close, or "
                                       "already, or are not whole lines of a bucket of {} bytes",
                                       range.first, range.last, size_bytes)};
  if (range.size_bytes() == 0)
    return {};
  x.finished.push_back(range);
  return x.run(range, stream);
}

expected<void> device_leaf_accumulator::end(const device_stream& stream) {
  auto& x = *state_;
  if (!x.plan.is_closed())
    TROUPE_TRY(close(stream));
  std::ranges::sort(x.finished);
  std::uint64_t next = 0;
  for (const auto& done : x.finished) {
    TROUPE_TRY(x.run({next, done.first}, stream));
    next = done.last;
  }
  TROUPE_TRY(x.run({next, x.layout.size_bytes()}, stream));
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
  return state_->plan.shards();
}

} // namespace troupe::collectives

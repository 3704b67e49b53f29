#include <troupe/collectives/leaf_accumulator.hpp>
#include <troupe/collectives/reduction.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <stdexcept>
#include <string>
#include <utility>

namespace troupe::collectives {

namespace {

/// A contribution goes through all its additions in pieces of this size, which stay in the cache.
constexpr std::uint64_t cached_bytes = 16 << 10;

std::string to_text(byte_range range) {
  return fmt::format("[{}, {})", range.first, range.last);
}

/// Inserts `range` into the disjoint `ranges`; returns false if it overlaps one.
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
    return fail(errc::invalid_argument, "an accumulator needs at least one shard");
  TROUPE_TRY(check_reducible(layout));
  return leaf_accumulator{std::move(layout), shards, memory};
}

leaf_accumulator::leaf_accumulator(bucket_layout layout, std::uint32_t shards, std::pmr::memory_resource& memory)
    : layout_(std::move(layout)), sums_(layout_.sums()), memory_(&memory), plan_(shards, is_narrow()) {}

void leaf_accumulator::begin(shard_range range) {
  plan_.begin(range);
  finished_.clear();
  partials_.clear();
}

std::span<std::byte> leaf_accumulator::next(shard_id shard) {
  plan_.advance_to(shard);
  make_buffers();
  run({0, layout_.size_bytes()});
  auto leaf = plan_.open_contribution();
  make_buffers();
  auto& bucket = is_narrow() ? contribution_ : buffers_[leaf];
  bucket.reserve(layout_.size_bytes());
  std::fill_n(bucket.data(), layout_.size_bytes(), std::byte{0});
  return bucket.bytes().first(layout_.size_bytes());
}

void leaf_accumulator::end() {
  if (!plan_.is_closed())
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
  plan_.close();
  make_buffers();
  for (const auto& x : plan_.sums())
    partials_.push_back({x.node, buffers_[x.buffer].data()});
}

void leaf_accumulator::finish(byte_range range) {
  if (!plan_.is_closed())
    throw std::logic_error{fmt::format(
        "leaf_accumulator: bytes {} were finished before the step was closed; call close first", to_text(range))};
  if (range.first > range.last || range.last > layout_.size_bytes() || range.first % alignment_bytes != 0 ||
      range.last % alignment_bytes != 0)
    throw std::logic_error{
        fmt::format("leaf_accumulator: bytes {} are not whole lines of {} bytes of a bucket of {} bytes",
                    to_text(range), alignment_bytes, layout_.size_bytes())};
  if (range.first == range.last)
    return;
  if (!insert(finished_, range))
    throw std::logic_error{fmt::format("leaf_accumulator: some of the bytes {} were finished already", to_text(range))};
  run(range);
}

/// Executes the plan on the part `range` of a contribution and on the corresponding part of the sums.
void leaf_accumulator::run(byte_range range) noexcept {
  for (auto first = range.first; first < range.last && !plan_.operations().empty();) {
    const byte_range block{first, std::min(first + cached_bytes, range.last)};
    const byte_range sums{layout_.offset_in_sums(block.first), layout_.offset_in_sums(block.last)};
    for (const auto& x : plan_.operations()) {
      auto* target = buffers_[x.target].data() + sums.first;
      switch (x.what) {
      case accumulation_plan::operation::kind::widen:
        widen(layout_, block, target, contribution_.data() + block.first);
        break;
      case accumulation_plan::operation::kind::clear:
        std::fill_n(target, sums.size_bytes(), std::byte{0});
        break;
      case accumulation_plan::operation::kind::add:
        combine(sums_, sums, reduce_op::sum, target, target, buffers_[x.source].data() + sums.first);
        break;
      }
    }
    first = block.last;
  }
}

void leaf_accumulator::make_buffers() {
  // At least one line, so that even an empty bucket's partial sums have distinct addresses.
  while (buffers_.size() < plan_.buffers())
    buffers_.emplace_back(std::max<std::size_t>(sums_.size_bytes(), alignment_bytes), *memory_);
}

} // namespace troupe::collectives

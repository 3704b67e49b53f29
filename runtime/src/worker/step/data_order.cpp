#include <troupe/data_order.hpp>

#include <algorithm>
#include <bit>
#include <fmt/format.h>

namespace troupe {

namespace {

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
std::uint64_t mix(std::uint64_t x) noexcept {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  x ^= x >> 31;
  return x;
}

} // namespace

keyed_permutation::keyed_permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch) noexcept
    : size_(size) {
  auto bits = static_cast<unsigned>(std::bit_width(size > 1 ? size - 1 : 1));
  half_bits_ = (bits + 1) / 2;
  mask_ = half_bits_ >= 32 ? 0xffffffffu : (std::uint64_t{1} << half_bits_) - 1;
  auto state = mix(seed + 0x9e3779b97f4a7c15u) ^ mix(epoch + 0xd1b54a32d192ed03u);
  for (auto& key : keys_) {
    state += 0x9e3779b97f4a7c15u;
    key = mix(state);
  }
}

std::uint64_t keyed_permutation::encrypt(std::uint64_t x) const noexcept {
  auto left = x >> half_bits_;
  auto right = x & mask_;
  for (auto key : keys_) {
    auto next = left ^ (mix(right ^ key) & mask_);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

std::uint64_t keyed_permutation::operator()(std::uint64_t index) const noexcept {
  auto x = encrypt(index);
  while (x >= size_)
    x = encrypt(x);
  return x;
}

std::string describe(const sample_order& order) {
  if (std::holds_alternative<shuffle::none>(order))
    return "not shuffled (1)";
  if (const auto* how = std::get_if<shuffle::blocks>(&order))
    return fmt::format("blocks of {}, windows of {} (1)", how->block_samples, how->window_blocks);
  return {};
}

namespace {

/// Keys of the permutations of windows, which differ from those of blocks and of whole epochs.
constexpr std::uint64_t window_seed = 0x5851f42d4c957f2du;

std::uint64_t permuted_units(std::uint64_t samples, const sample_order& order) noexcept {
  const auto* how = std::get_if<shuffle::blocks>(&order);
  return how == nullptr ? samples : std::max<std::uint64_t>(samples / how->block_samples, 1);
}

} // namespace

epoch_order::epoch_order(std::uint64_t samples, const sample_order& order, std::uint64_t seed,
                         std::uint64_t epoch) noexcept
    : samples_(samples),
      order_(order),
      seed_(seed),
      epoch_(epoch),
      outer_(permuted_units(samples, order), seed, epoch),
      inner_(0, seed, epoch) {
  if (const auto* how = std::get_if<shuffle::blocks>(&order))
    before_short_ = mix(mix(seed ^ window_seed) + epoch) % (samples / how->block_samples + 1);
}

std::uint64_t epoch_order::operator()(std::uint64_t place) noexcept {
  if (const auto* how = std::get_if<shuffle::blocks>(&order_))
    return in_blocks(*how, place);
  return std::holds_alternative<shuffle::none>(order_) ? place : outer_(place);
}

std::uint64_t epoch_order::in_blocks(const shuffle::blocks& how, std::uint64_t place) noexcept {
  const auto size = how.block_samples;
  const auto full = samples_ / size;
  const auto rest = samples_ % size;
  // No product of large numbers: a window of all blocks is as large as the data set.
  const auto length = how.window_blocks > samples_ / size ? samples_ : how.window_blocks * size;
  const auto window = place / length;
  const auto first = window * length;
  if (inner_.size() == 0 || window != window_) {
    inner_ = {std::min(length, samples_ - first), seed_ + window_seed + mix(window), epoch_};
    window_ = window;
  }
  // The place among the blocks one after the other, in the epoch's order of blocks.
  auto in_order = first + inner_(place - first);
  const auto begin_of_short = before_short_ * size;
  if (in_order >= begin_of_short && in_order < begin_of_short + rest)
    return full * size + (in_order - begin_of_short);
  if (in_order >= begin_of_short + rest)
    in_order -= rest;
  return outer_(in_order / size) * size + in_order % size;
}

void data_order::samples_of(step_id step, shard_id shard, std::vector<std::uint64_t>& out) const {
  // 128 bits: B times V may be large.
  __extension__ using wide = unsigned __int128;
  auto cut = [&](std::uint64_t v) { return static_cast<std::uint64_t>(static_cast<wide>(v) * batch_ / shards_); };
  auto first = cut(shard.value);
  auto last = cut(std::uint64_t{shard.value} + 1);
  out.clear();
  auto position = (step.value - 1) * batch_ + first;
  auto order = epoch_order{samples_, order_, seed_, position / samples_};
  for (auto i = first; i < last; ++i, ++position) {
    if (position / samples_ != order.epoch())
      order = {samples_, order_, seed_, position / samples_};
    out.push_back(order(position % samples_));
  }
}

std::uint64_t digest_of_samples(std::uint64_t before, std::span<const std::uint64_t> samples) noexcept {
  for (auto sample : samples)
    before = mix((before ^ sample) + 0x9e3779b97f4a7c15u);
  return before;
}

} // namespace troupe

#include <troupe/data_order.hpp>

#include <bit>

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

void data_order::samples_of(step_id step, shard_id shard, std::vector<std::uint64_t>& out) const {
  // 128 bits: B times V may be large.
  __extension__ using wide = unsigned __int128;
  auto cut = [&](std::uint64_t v) { return static_cast<std::uint64_t>(static_cast<wide>(v) * batch_ / shards_); };
  auto first = cut(shard.value);
  auto last = cut(std::uint64_t{shard.value} + 1);
  out.clear();
  auto position = (step.value - 1) * batch_ + first;
  auto epoch = position / samples_;
  auto permutation = keyed_permutation{samples_, seed_, epoch};
  for (auto i = first; i < last; ++i, ++position) {
    if (position / samples_ != epoch) {
      epoch = position / samples_;
      permutation = keyed_permutation{samples_, seed_, epoch};
    }
    out.push_back(permutation(position % samples_));
  }
}

std::uint64_t digest_of_samples(std::uint64_t before, std::span<const std::uint64_t> samples) noexcept {
  for (auto sample : samples)
    before = mix((before ^ sample) + 0x9e3779b97f4a7c15u);
  return before;
}

} // namespace troupe

#include <troupe/boosting/exact_sum.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace troupe::boosting {

namespace {

constexpr std::size_t digits = exact_sum::digits;
/// The exponent of the lowest bit of the first word: a multiple of 32 below that of the smallest double.
constexpr int lowest_bit = -1088;
constexpr std::int64_t base = std::int64_t{1} << 32;

/// Makes each word but the last one lie in [0, 2^32), with the same sum.
void carry(std::span<std::int64_t, exact_sum::size> words) noexcept {
  for (std::size_t i = 0; i + 1 < digits; ++i) {
    auto over = words[i] >> 32;
    words[i] -= over * base;
    words[i + 1] += over;
  }
}

} // namespace

void exact_sum::add(double value) noexcept {
  if (!std::isfinite(value)) {
    ++words_[digits + (std::isnan(value) ? 0 : value > 0 ? 1 : 2)];
    return;
  }
  auto bits = std::bit_cast<std::uint64_t>(value);
  auto exponent = static_cast<int>(bits >> 52 & 2047);
  auto fraction = bits & ((std::uint64_t{1} << 52) - 1);
  if (exponent > 0)
    fraction |= std::uint64_t{1} << 52;
  // A double is `fraction` times 2 to the power of max(exponent, 1) - 1075.
  auto at = static_cast<unsigned>(std::max(exponent, 1) - 1075 - lowest_bit);
  auto sign = value < 0 ? -1 : 1;
  // The fraction, shifted by less than 32 bits, covers at most three words.
  auto shift = at % 32;
  auto low = fraction << shift;
  auto high = shift == 0 ? 0 : fraction >> (64 - shift);
  auto* word = words_.data() + at / 32;
  word[0] += sign * static_cast<std::int64_t>(low & 0xffffffff);
  word[1] += sign * static_cast<std::int64_t>(low >> 32);
  word[2] += sign * static_cast<std::int64_t>(high);
}

std::span<const std::int64_t, exact_sum::size> exact_sum::words() noexcept {
  carry(words_);
  return words_;
}

double exact_sum::value_of(std::span<const std::int64_t, size> words) noexcept {
  constexpr auto infinity = std::numeric_limits<double>::infinity();
  auto counts = words.subspan<digits>();
  if (counts[0] > 0 || (counts[1] > 0 && counts[2] > 0))
    return std::numeric_limits<double>::quiet_NaN();
  if (counts[1] > 0 || counts[2] > 0)
    return counts[1] > 0 ? infinity : -infinity;
  std::array<std::int64_t, size> all{};
  std::ranges::copy(words, all.begin());
  carry(all);
  // Of a negative sum, the negative words would cancel the positive ones below them.
  auto negative = all[digits - 1] < 0;
  if (negative) {
    std::ranges::transform(all, all.begin(), [](auto word) { return -word; });
    carry(all);
  }
  double result = 0;
  for (std::size_t i = 0; i < digits; ++i)
    result += std::ldexp(static_cast<double>(all[i]), static_cast<int>(32 * i) + lowest_bit);
  return negative ? -result : result;
}

} // namespace troupe::boosting

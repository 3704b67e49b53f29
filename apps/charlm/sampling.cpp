#include <charlm/sampling.hpp>

#include <charlm/elementary.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace charlm {

namespace {

/// A number in [0, 1) that depends only on its arguments (SplitMix64 of Steele, Lea and Flood, with the counter as its
/// state).
double uniform(std::uint64_t seed, std::uint64_t counter) {
  auto mix = [](std::uint64_t x) {
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31U);
  };
  const auto bits = mix(mix(seed) + (counter + 1) * 0x9e3779b97f4a7c15U);
  return static_cast<double>(bits >> 11U) * 0x1.0p-53;
}

using byte_logits = std::array<float, byte_values>;

std::uint8_t likeliest(const byte_logits& logits) {
  return static_cast<std::uint8_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::uint8_t draw(const byte_logits& logits, double temperature, double u) {
  const double greatest = logits[likeliest(logits)];
  std::array<double, byte_values> weight;
  double total = 0.0;
  for (std::size_t b = 0; b < byte_values; ++b) {
    weight[b] = exp_of_nonpositive(static_cast<float>((double{logits[b]} - greatest) / temperature));
    total += weight[b];
  }
  double sum = 0.0;
  for (std::size_t b = 0; b < byte_values; ++b) {
    sum += weight[b];
    if (u * total < sum)
      return static_cast<std::uint8_t>(b);
  }
  return likeliest(logits);
}

std::vector<std::uint8_t> first_context(std::string_view prompt, std::size_t context) {
  std::vector<std::uint8_t> result(context, static_cast<std::uint8_t>('\n'));
  const auto tail = prompt.substr(prompt.size() - std::min(prompt.size(), context));
  std::copy(tail.begin(), tail.end(), result.end() - static_cast<std::ptrdiff_t>(tail.size()));
  return result;
}

/// The length of the UTF-8 sequence of the printable character at the start of `text`; 0 if there is none.
std::size_t character_length(std::string_view text) {
  const auto at = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto continued = [&](std::size_t i) { return (at(i) & 0xc0U) == 0x80U; };
  const auto first = at(0);
  if (first < 0x80U)
    return first == '\n' || first == '\t' || (first >= 0x20U && first != 0x7fU) ? 1 : 0;
  if (first >= 0xc2U && first <= 0xdfU) // U+0080 to U+009F are control characters
    return continued(1) && !(first == 0xc2U && at(1) < 0xa0U) ? 2 : 0;
  if (first >= 0xe0U && first <= 0xefU) // neither overlong nor a surrogate
    return continued(1) && continued(2) && !(first == 0xe0U && at(1) < 0xa0U) && !(first == 0xedU && at(1) > 0x9fU) ? 3
                                                                                                                    : 0;
  if (first >= 0xf0U && first <= 0xf4U) // neither overlong nor above U+10FFFF
    return continued(1) && continued(2) && continued(3) && !(first == 0xf0U && at(1) < 0x90U) &&
                   !(first == 0xf4U && at(1) > 0x8fU)
               ? 4
               : 0;
  return 0;
}

} // namespace

std::string sample(const model& from, std::string_view prompt, std::size_t bytes, double temperature,
                   std::uint64_t seed) {
  auto context = first_context(prompt, from.shape().context);
  byte_logits logits{};
  std::string result;
  for (std::size_t i = 0; i < bytes; ++i) {
    from.predict(context, logits);
    if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }))
      throw troupe::exception{troupe::errc::invalid_argument,
                              "sample: the model's logits are not finite, so its training diverged"};
    const auto next = temperature > 0.0 ? draw(logits, temperature, uniform(seed, i)) : likeliest(logits);
    result += static_cast<char>(next);
    std::rotate(context.begin(), context.begin() + 1, context.end());
    context.back() = next;
  }
  return result;
}

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const auto length = character_length(text);
    result += length > 0 ? text.substr(0, length) : std::string_view{"?"};
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return result;
}

} // namespace charlm

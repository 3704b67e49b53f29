#include <charlm/corpus.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace charlm {

namespace {

troupe::expected<corpus> corpus_of(troupe::expected<troupe::data::split_text> text) {
  if (!text)
    return troupe::fail(std::move(text.error()));
  return corpus{std::move(*text)};
}

} // namespace

troupe::expected<corpus> make_corpus(std::vector<std::uint8_t> bytes, std::size_t context) {
  return corpus_of(troupe::data::make_text(std::move(bytes), context));
}

troupe::expected<corpus> load_corpus(const std::filesystem::path& path, std::size_t context) {
  return corpus_of(troupe::data::read_text(path, context));
}

namespace {

using byte_counts = std::array<std::uint64_t, 256>;

/// Calls `f` with the position of each byte of the training part and whether the byte before it is in the same stretch.
template <class F>
void for_each_training_byte(const corpus& text, F f) {
  const auto size = text.bytes().size();
  const auto& part = text.training();
  for (std::uint64_t start = 0; start < size; start += part.period_bytes())
    for (std::uint64_t i = start; i < std::min<std::uint64_t>(start + part.part_bytes(), size); ++i)
      f(i, i > start);
}

/// Byte frequencies of the training part, each count raised by one.
std::array<double, 256> smoothed_frequencies(const corpus& text) {
  byte_counts counts;
  counts.fill(1);
  std::uint64_t total = counts.size();
  for_each_training_byte(text, [&](std::uint64_t i, bool) {
    ++counts[text.bytes()[i]];
    ++total;
  });
  std::array<double, 256> result;
  for (std::size_t b = 0; b < result.size(); ++b)
    result[b] = static_cast<double>(counts[b]) / static_cast<double>(total);
  return result;
}

/// The mean of -log `probability(i)` over the held-out targets, where `i` is the target's position.
template <class F>
double cross_entropy(const corpus& text, F probability) {
  double sum = 0.0;
  for (std::uint64_t i = 0; i < text.held_out_samples(); ++i)
    sum -= std::log(probability(text.held_out_position(i) + text.context()));
  return sum / static_cast<double>(text.held_out_samples());
}

} // namespace

double unigram_entropy(const corpus& text) {
  const auto frequency = smoothed_frequencies(text);
  return cross_entropy(text, [&](std::uint64_t i) { return frequency[text.bytes()[i]]; });
}

double bigram_entropy(const corpus& text) {
  const auto bytes = text.bytes();
  const auto frequency = smoothed_frequencies(text);
  std::vector<byte_counts> pairs(256, byte_counts{});
  byte_counts firsts{};
  for_each_training_byte(text, [&](std::uint64_t i, bool has_previous) {
    if (has_previous) {
      ++pairs[bytes[i - 1]][bytes[i]];
      ++firsts[bytes[i - 1]];
    }
  });
  return cross_entropy(text, [&](std::uint64_t i) {
    const auto first = bytes[i - 1];
    const auto seen = static_cast<double>(pairs[first][bytes[i]]) + bigram_prior_bytes * frequency[bytes[i]];
    return seen / (static_cast<double>(firsts[first]) + bigram_prior_bytes);
  });
}

} // namespace charlm

#pragma once

#include <troupe/data/text.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

namespace charlm {

/// A text as bytes, split into training and held-out parts. A sample is a window of `context` bytes and the byte after
/// it, identified by its position in the text.
class corpus {
 public:
  explicit corpus(troupe::data::split_text text) noexcept : text_(std::move(text)) {}

  [[nodiscard]] const troupe::data::text_windows& training() const noexcept { return *text_.training; }
  [[nodiscard]] const troupe::data::text_windows& held_out() const noexcept { return *text_.held_out; }

  [[nodiscard]] std::span<const std::uint8_t> bytes() const noexcept { return training().bytes(); }
  [[nodiscard]] std::size_t context() const noexcept { return training().context(); }
  [[nodiscard]] std::size_t block_bytes() const noexcept { return training().block_bytes(); }

  [[nodiscard]] std::uint64_t training_samples() const noexcept { return training().size(); }
  [[nodiscard]] std::uint64_t held_out_samples() const noexcept { return held_out().size(); }

  /// Where sample `index` starts in `bytes()`. Throws `troupe::exception` for an index that is out of range.
  [[nodiscard]] std::uint64_t training_position(std::uint64_t index) const { return training().position(index); }
  [[nodiscard]] std::uint64_t held_out_position(std::uint64_t index) const { return held_out().position(index); }

 private:
  troupe::data::split_text text_;
};

/// As `troupe::data::make_text`.
[[nodiscard]] troupe::expected<corpus> make_corpus(std::vector<std::uint8_t> bytes, std::size_t context = 16);

/// As `troupe::data::read_text`.
[[nodiscard]] troupe::expected<corpus> load_corpus(const std::filesystem::path& path, std::size_t context = 16);

/// Nats per held-out byte under the byte frequencies of the training part, each count raised by one.
[[nodiscard]] double unigram_entropy(const corpus& text);

/// Nats per held-out byte when each is predicted from the byte before it. The prediction uses the counts of pairs in
/// the training part, plus the smoothed frequencies of `unigram_entropy` weighted as `bigram_prior_bytes` occurrences
/// after each byte. Measured on the targets of the held-out samples, so it is comparable with a model's held-out loss.
[[nodiscard]] double bigram_entropy(const corpus& text);

inline constexpr double bigram_prior_bytes = 4.0;

} // namespace charlm

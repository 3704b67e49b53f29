#pragma once

#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace charlm {

/// A text in bytes and its split into training and held-out parts. A sample is a window of `context` bytes and the byte
/// after it.
///
/// The text is cut into periods of ten blocks; nine are for training and the tenth is held out, so that each of many
/// concatenated files gives to both parts. A block has 1 KiB, or a tenth of a text shorter than 10 KiB. Every window
/// lies entirely in one part: no held-out byte is ever seen in training, as a target or as context, and the other way
/// round.
class corpus {
 public:
  [[nodiscard]] std::span<const std::uint8_t> bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t context() const noexcept { return context_; }
  [[nodiscard]] std::size_t block_bytes() const noexcept { return block_bytes_; }

  [[nodiscard]] std::uint64_t training_samples() const noexcept;
  [[nodiscard]] std::uint64_t held_out_samples() const noexcept;

  /// Where sample `index` starts in `bytes()`; its target is `context` bytes further on. Positions grow with the index.
  /// Throws `troupe::failure` for an index that is not less than the number of samples.
  [[nodiscard]] std::uint64_t training_position(std::uint64_t index) const;
  [[nodiscard]] std::uint64_t held_out_position(std::uint64_t index) const;

  /// SHA-256 of the bytes and the split, in hexadecimal: equal fingerprints mean equal samples.
  [[nodiscard]] std::string fingerprint() const;

 private:
  friend troupe::expected<corpus> make_corpus(std::vector<std::uint8_t> bytes, std::size_t context);

  corpus() = default;

  std::vector<std::uint8_t> bytes_;
  std::size_t context_ = 0;
  std::size_t block_bytes_ = 0;
};

/// Takes a text from memory. Fails with `errc::invalid_argument` where it is too short for a training and a held-out
/// window (less than 10 * (context + 1) bytes) or `context` is 0.
[[nodiscard]] troupe::expected<corpus> make_corpus(std::vector<std::uint8_t> bytes, std::size_t context = 16);

/// Reads a file, or all regular files below a directory in the order of their paths (as bytes), joined by newlines.
/// Symbolic links inside a directory are passed over: what they point to inside it is there already. Fails with
/// `errc::not_found` where there is nothing to read, `errc::io_error` naming the file that cannot be read,
/// `errc::invalid_argument` for a text of more than 1 GiB or one that `make_corpus` refuses.
[[nodiscard]] troupe::expected<corpus> load_corpus(const std::filesystem::path& path, std::size_t context = 16);

/// Nats per held-out byte under the byte frequencies of the training part, each count raised by one.
[[nodiscard]] double unigram_entropy(const corpus& text);

/// Nats per held-out byte when each is predicted from the byte before it: the counts of pairs in the training part,
/// mixed with the smoothed frequencies of `unigram_entropy` as if those had been seen `bigram_prior_bytes` times after
/// each byte. Measured on the targets of the held-out samples, hence comparable with a model's held-out loss.
[[nodiscard]] double bigram_entropy(const corpus& text);

inline constexpr double bigram_prior_bytes = 4.0;

} // namespace charlm

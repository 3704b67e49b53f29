#pragma once

#include <troupe/data/data_set.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe::data {

/// Windows over a text in bytes: a sample is `context` bytes (column "context", u8 {context}) and the byte after them
/// (column "target", u8).
///
/// A text is split into a training and a held-out part by `split_text`: cut into periods of ten blocks, of which nine
/// are for training and the tenth is held out, so that each of many joined files gives to both. A block has 1 KiB, or a
/// tenth of a text shorter than 10 KiB. Every window lies entirely in one part: no held-out byte is ever seen in
/// training, as a target or as context, and the other way round.
class text_windows final : public data_set {
 public:
  enum class part : std::uint8_t { training, held_out };

  [[nodiscard]] std::uint64_t size() const noexcept override;
  [[nodiscard]] std::span<const column_spec> columns() const noexcept override { return columns_; }

  /// Of the whole text and the split.
  [[nodiscard]] std::string fingerprint() const override;

  /// The whole text, of which both parts hold the same copy.
  [[nodiscard]] std::span<const std::uint8_t> bytes() const noexcept { return *bytes_; }
  [[nodiscard]] std::size_t context() const noexcept { return context_; }
  [[nodiscard]] std::size_t block_bytes() const noexcept { return block_bytes_; }

  /// Where sample `index` begins in `bytes()`; its target is `context` bytes further on. Positions grow with the index.
  /// Throws `exception` for a sample that there is not.
  [[nodiscard]] std::uint64_t position(std::uint64_t index) const;

  /// In every period of the text, where this part begins and how long it is.
  [[nodiscard]] std::uint64_t period_bytes() const noexcept;
  [[nodiscard]] std::uint64_t part_begin() const noexcept;
  [[nodiscard]] std::uint64_t part_bytes() const noexcept;

 protected:
  [[nodiscard]] expected<void> read(std::span<const std::uint64_t> samples, batch& out) const override;

 private:
  friend struct split_text_access; // makes both parts over one copy

  text_windows(std::shared_ptr<const std::vector<std::uint8_t>> bytes, std::size_t context, std::size_t block_bytes,
               part which);

  [[nodiscard]] std::uint64_t place(std::uint64_t index) const noexcept;

  std::shared_ptr<const std::vector<std::uint8_t>> bytes_;
  std::size_t context_;
  std::size_t block_bytes_;
  part part_;
  std::vector<column_spec> columns_;
};

/// A text's two parts.
struct split_text {
  std::shared_ptr<const text_windows> training;
  std::shared_ptr<const text_windows> held_out;
};

/// Takes a text from memory. Fails with `errc::invalid_argument` where it is too short for a window of both parts (less
/// than 10 * (context + 1) bytes), and for a context of 0 or more than 1023 bytes.
[[nodiscard]] expected<split_text> make_text(std::vector<std::uint8_t> bytes, std::size_t context);

/// Reads a file, or all regular files below a directory in the order of their paths (as bytes), joined by newlines.
/// Symbolic links inside a directory are passed over: what they point to inside it is there already. Fails with
/// `errc::not_found` where there is nothing to read, `errc::io_error` naming the file that cannot be read,
/// `errc::invalid_argument` for a text of more than 1 GiB or one that `make_text` refuses.
[[nodiscard]] expected<split_text> read_text(const std::filesystem::path& path, std::size_t context);

} // namespace troupe::data

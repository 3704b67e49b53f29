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

/// Windows over a text of bytes: a sample is `context` bytes (column "context", u8 {context}) and the byte after them
/// (column "target", u8).
///
/// `split_text` splits a text into a training and a held-out part: it is cut into periods of ten blocks, of which nine
/// are for training and the tenth is held out, so that each of many joined files contributes to both. A block has 1
/// KiB, or a tenth of a text shorter than 10 KiB. Every window lies entirely in one part: no held-out byte appears in
/// training, as a target or as context, and vice versa.
class text_windows final : public data_set {
 public:
  enum class part : std::uint8_t { training, held_out };

  [[nodiscard]] std::uint64_t size() const noexcept override;
  [[nodiscard]] std::span<const column_spec> columns() const noexcept override { return columns_; }

  /// Identifies the whole text and the split.
  [[nodiscard]] std::string fingerprint() const override;

  /// The whole text, shared by both parts.
  [[nodiscard]] std::span<const std::uint8_t> bytes() const noexcept { return *bytes_; }
  [[nodiscard]] std::size_t context() const noexcept { return context_; }
  [[nodiscard]] std::size_t block_bytes() const noexcept { return block_bytes_; }

  /// The offset of sample `index` in `bytes()`; its target is `context` bytes later. Positions increase with the index.
  /// Throws `exception` for a sample that does not exist.
  [[nodiscard]] std::uint64_t position(std::uint64_t index) const;

  /// The length of a period, and the offset and length of this part in it.
  [[nodiscard]] std::uint64_t period_bytes() const noexcept;
  [[nodiscard]] std::uint64_t part_begin() const noexcept;
  [[nodiscard]] std::uint64_t part_bytes() const noexcept;

 protected:
  [[nodiscard]] expected<void> read(std::span<const std::uint64_t> samples, batch& out) const override;

 private:
  friend struct split_text_access; // makes both parts from one copy

  text_windows(std::shared_ptr<const std::vector<std::uint8_t>> bytes, std::size_t context, std::size_t block_bytes,
               part which);

  [[nodiscard]] std::uint64_t place(std::uint64_t index) const noexcept;

  std::shared_ptr<const std::vector<std::uint8_t>> bytes_;
  std::size_t context_;
  std::size_t block_bytes_;
  part part_;
  std::vector<column_spec> columns_;
};

/// The two parts of a text.
struct split_text {
  std::shared_ptr<const text_windows> training;
  std::shared_ptr<const text_windows> held_out;
};

/// Makes a text from memory. Fails with `errc::invalid_argument` if it is too short for a window in both parts (less
/// than 10 * (context + 1) bytes), and for a context of 0 or more than 1023 bytes.
[[nodiscard]] expected<split_text> make_text(std::vector<std::uint8_t> bytes, std::size_t context);

/// Reads a file, or all regular files below a directory in the byte order of their paths, joined by newlines. Symbolic
/// links inside a directory are skipped. Fails with `errc::not_found` if there is nothing to read, with
/// `errc::io_error` naming a file that cannot be read, and with `errc::invalid_argument` for a text of more than 1 GiB
/// or one that `make_text` rejects.
[[nodiscard]] expected<split_text> read_text(const std::filesystem::path& path, std::size_t context);

} // namespace troupe::data

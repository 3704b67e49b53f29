#pragma once

#include <troupe/data/data_set.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gpt {

/// The characters (bytes) of a text in ascending order. A token is the index of a character.
class vocabulary {
 public:
  [[nodiscard]] static vocabulary of(std::span<const std::uint8_t> text);

  /// `characters` must be in ascending order, as those of `characters()`.
  explicit vocabulary(std::vector<std::uint8_t> characters) : characters_(std::move(characters)) {}

  [[nodiscard]] std::size_t size() const noexcept { return characters_.size(); }
  [[nodiscard]] const std::vector<std::uint8_t>& characters() const noexcept { return characters_; }
  [[nodiscard]] std::optional<std::uint8_t> token(std::uint8_t character) const noexcept;

  /// Fails with `errc::invalid_argument` for an unknown character, and names it.
  [[nodiscard]] troupe::expected<std::vector<std::uint8_t>> encode(std::span<const std::uint8_t> text) const;

 private:
  std::vector<std::uint8_t> characters_;
};

/// A text as windows of `block` tokens (column "context") and those that follow each of them ("target").
struct token_windows {
  /// Empty for files of tokens.
  vocabulary characters{{}};
  /// The number of different tokens.
  std::uint64_t tokens = 0;
  troupe::data::data_set_ptr training;
  troupe::data::data_set_ptr validation;
  /// Bytes of text, or tokens in the windows for training.
  std::uint64_t length = 0;
  /// Whether the published figure was measured on this text.
  bool is_tinyshakespeare = false;
};

/// Each character is a token. The first nine tenths of the text are for training, with a window at each position. The
/// last tenth is for validation, in windows that predict each token once.
/// Fails with `errc::invalid_argument` if a tenth of the text is shorter than a window.
[[nodiscard]] troupe::expected<token_windows> make_windows(std::span<const std::uint8_t> text, std::uint64_t block);

/// The same for a text file, or a directory of text files, read as `data::read_text` does.
[[nodiscard]] troupe::expected<token_windows> read_windows(const std::filesystem::path& path, std::uint64_t block);

/// Files of 16-bit tokens without a header, as nanoGPT's `prepare.py` writes them. They may be larger than memory.
struct token_files {
  std::filesystem::path training;
  std::filesystem::path validation;
  std::uint64_t vocabulary = 0;
  /// As in `data::token_window_options`.
  std::string name = {};
  std::function<void()> heartbeat = {};
};

/// Maps files of tokens. Windows predict each token once. Fails as `data::read_raw` and `data::make_token_windows` do,
/// naming the file.
[[nodiscard]] troupe::expected<token_windows> open_token_files(const token_files& files, std::uint64_t block);

} // namespace gpt

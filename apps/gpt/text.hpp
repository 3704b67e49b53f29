#pragma once

#include <troupe/data/data_set.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpt {

/// The characters of a text, each a byte, in ascending order. A token is the place of one among them.
class vocabulary {
 public:
  [[nodiscard]] static vocabulary of(std::span<const std::uint8_t> text);

  /// Of characters that `characters()` has given; in ascending order.
  explicit vocabulary(std::vector<std::uint8_t> characters) : characters_(std::move(characters)) {}

  [[nodiscard]] std::size_t size() const noexcept { return characters_.size(); }
  [[nodiscard]] const std::vector<std::uint8_t>& characters() const noexcept { return characters_; }
  [[nodiscard]] std::optional<std::uint8_t> token(std::uint8_t character) const noexcept;

  /// Fails with `errc::invalid_argument` for a text with another character, and names it.
  [[nodiscard]] troupe::expected<std::vector<std::uint8_t>> encode(std::span<const std::uint8_t> text) const;

 private:
  std::vector<std::uint8_t> characters_;
};

/// A text in tokens: windows of `block + 1` of them (column "tokens", u8), of which the first `block` are the input and
/// the last `block` what is to be predicted. The first nine tenths are for training, a window for each place; the last
/// tenth is for validation, in windows that predict each token once.
struct token_windows {
  vocabulary characters;
  troupe::data::data_set_ptr training;
  troupe::data::data_set_ptr validation;
  std::uint64_t text_bytes = 0;
  /// Whether it is the text that the published figure was measured on.
  bool is_tinyshakespeare = false;
};

/// Fails with `errc::invalid_argument` for a text of which a tenth holds no window.
[[nodiscard]] troupe::expected<token_windows> make_windows(std::span<const std::uint8_t> text, std::uint64_t block);

/// Reads a text file, or a directory of them, as `data::read_text` does.
[[nodiscard]] troupe::expected<token_windows> read_windows(const std::filesystem::path& path, std::uint64_t block);

} // namespace gpt

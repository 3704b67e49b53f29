#include <gpt/text.hpp>

#include <troupe/data/raw.hpp>
#include <troupe/data/text.hpp>
#include <troupe/data/tokens.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

namespace gpt {

using namespace troupe;

namespace {

/// Of the 1,115,394 bytes in karpathy/char-rnn.
constexpr std::string_view tinyshakespeare_fingerprint = "b95381b7460b5a2ce98ab6287eb3c4e6";

/// Windows that begin at every `stride` tokens of a part of a text.
expected<data::data_set_ptr> windows_of(std::span<const std::uint8_t> part,
                                        const std::shared_ptr<const std::vector<std::uint8_t>>& owner,
                                        std::uint64_t block, std::uint64_t stride) {
  auto column = data::column{{"tokens", dtype::u8, {}, {}}, std::as_bytes(part), owner};
  return data::make_token_windows(std::move(column), {.context = block, .stride = stride});
}

/// A file of 16-bit tokens, as nanoGPT's prepare.py writes it, mapped.
expected<data::data_set_ptr> open_tokens(const std::filesystem::path& path, std::uint64_t block,
                                         const token_files& files) {
  TROUPE_TRY(auto tokens, data::read_raw(path, "tokens", dtype::u16));
  auto result = data::make_token_windows(
      std::move(tokens),
      {.context = block, .vocabulary = files.vocabulary, .name = files.name, .heartbeat = files.heartbeat});
  if (!result)
    return fail(result.error().code, fmt::format("{}: {}", path.string(), result.error().message));
  return result;
}

} // namespace

vocabulary vocabulary::of(std::span<const std::uint8_t> text) {
  std::vector<std::uint8_t> characters;
  std::array<bool, 256> seen{};
  for (auto character : text)
    seen[character] = true;
  for (std::size_t character = 0; character < seen.size(); ++character)
    if (seen[character])
      characters.push_back(static_cast<std::uint8_t>(character));
  return vocabulary{std::move(characters)};
}

std::optional<std::uint8_t> vocabulary::token(std::uint8_t character) const noexcept {
  auto found = std::ranges::lower_bound(characters_, character);
  if (found == characters_.end() || *found != character)
    return std::nullopt;
  return static_cast<std::uint8_t>(found - characters_.begin());
}

expected<std::vector<std::uint8_t>> vocabulary::encode(std::span<const std::uint8_t> text) const {
  std::vector<std::uint8_t> result;
  result.reserve(text.size());
  for (auto character : text) {
    auto found = token(character);
    if (!found)
      return fail(errc::invalid_argument,
                  fmt::format("the character with code {} is not among the {} that the model knows: use characters of "
                              "the text that it was trained on",
                              character, size()));
    result.push_back(*found);
  }
  return result;
}

expected<token_windows> make_windows(std::span<const std::uint8_t> text, std::uint64_t block) {
  auto held_out = text.size() - text.size() * 9 / 10;
  if (block == 0 || held_out <= block)
    return fail(errc::invalid_argument,
                fmt::format("the last tenth of {} characters does not contain a window of {} characters and the one "
                            "after it: use a longer text, or a smaller --block-size (at least 1)",
                            text.size(), block));
  token_windows result{vocabulary::of(text), {}, nullptr, nullptr, text.size(), false};
  result.tokens = result.characters.size();
  auto tokens = std::make_shared<const std::vector<std::uint8_t>>(value_or_throw(result.characters.encode(text)));
  auto all = std::span{*tokens};
  TROUPE_TRY(result.training, windows_of(all.first(all.size() - held_out), tokens, block, 1));
  TROUPE_TRY(result.validation, windows_of(all.last(held_out), tokens, block, block));
  result.is_tinyshakespeare =
      data::fingerprint_of({reinterpret_cast<const char*>(text.data()), text.size()}) == tinyshakespeare_fingerprint;
  return result;
}

expected<token_windows> read_windows(const std::filesystem::path& path, std::uint64_t block) {
  auto text = data::read_text(path, 1);
  if (!text)
    return fail(std::move(text.error()));
  auto result = make_windows(text->training->bytes(), block);
  if (!result)
    return fail(result.error().code, fmt::format("{}: {}", path.string(), result.error().message));
  return result;
}

expected<token_windows> open_token_files(const token_files& files, std::uint64_t block) {
  token_windows result;
  result.tokens = files.vocabulary;
  TROUPE_TRY(result.training, open_tokens(files.training, block, files));
  TROUPE_TRY(result.validation, open_tokens(files.validation, block, files));
  result.length = result.training->size() * block;
  return result;
}

} // namespace gpt

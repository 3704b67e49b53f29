#include <gpt/text.hpp>

#include <troupe/data/text.hpp>

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

class windows final : public data::data_set {
 public:
  windows(std::shared_ptr<const std::vector<std::uint8_t>> tokens, std::span<const std::uint8_t> part,
          std::uint64_t block, std::uint64_t stride)
      : tokens_(std::move(tokens)),
        part_(part),
        block_(block),
        stride_(stride),
        columns_{{"tokens", dtype::u8, {block + 1}, {}}} {}

  std::uint64_t size() const noexcept override {
    return part_.size() <= block_ ? 0 : (part_.size() - block_ - 1) / stride_ + 1;
  }

  std::span<const data::column_spec> columns() const noexcept override { return columns_; }

  std::string fingerprint() const override {
    std::string_view bytes{reinterpret_cast<const char*>(part_.data()), part_.size()};
    return data::fingerprint_of(
        fmt::format("token windows of {} every {} over {}", block_, stride_, data::fingerprint_of(bytes)));
  }

 protected:
  expected<void> read(std::span<const std::uint64_t> samples, data::batch& out) const override {
    auto values = out.values<std::uint8_t>("tokens");
    for (std::size_t i = 0; i < samples.size(); ++i)
      std::ranges::copy(part_.subspan(samples[i] * stride_, block_ + 1), values.subspan(i * (block_ + 1)).begin());
    return {};
  }

 private:
  std::shared_ptr<const std::vector<std::uint8_t>> tokens_;
  /// A part of `tokens_`.
  std::span<const std::uint8_t> part_;
  std::uint64_t block_;
  std::uint64_t stride_;
  std::vector<data::column_spec> columns_;
};

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
  token_windows result{vocabulary::of(text), nullptr, nullptr, text.size(), false};
  auto tokens = std::make_shared<const std::vector<std::uint8_t>>(value_or_throw(result.characters.encode(text)));
  auto all = std::span{*tokens};
  result.training = std::make_shared<windows>(tokens, all.first(all.size() - held_out), block, 1);
  result.validation = std::make_shared<windows>(tokens, all.last(held_out), block, block);
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

} // namespace gpt

#include <troupe/data/tokens.hpp>

#include "content_hash.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

namespace troupe::data {

namespace {

/// Copies tokens of one type to i64. Returns the first that is negative or not less than `limit`, or `count`.
template <class T>
std::uint64_t widen(const std::byte* from, std::uint64_t count, std::uint64_t limit, std::int64_t* to) {
  for (std::uint64_t i = 0; i < count; ++i) {
    T token;
    std::memcpy(&token, from + i * sizeof(T), sizeof(T));
    if (token < T{0} || static_cast<std::uint64_t>(token) >= limit)
      return i;
    to[i] = static_cast<std::int64_t>(token);
  }
  return count;
}

/// The same for a type that is known at run time; null for types that are not tokens.
using widen_function = std::uint64_t (*)(const std::byte* from, std::uint64_t count, std::uint64_t limit,
                                         std::int64_t* to);

widen_function widen_from(dtype type) {
  constexpr std::pair<dtype, widen_function> all[] = {
      {dtype::u8, widen<std::uint8_t>},  {dtype::u16, widen<std::uint16_t>}, {dtype::u32, widen<std::uint32_t>},
      {dtype::i16, widen<std::int16_t>}, {dtype::i32, widen<std::int32_t>},  {dtype::i64, widen<std::int64_t>}};
  const auto* found = std::ranges::find(all, type, &std::pair<dtype, widen_function>::first);
  return found == std::end(all) ? nullptr : found->second;
}

class token_windows final : public data_set {
 public:
  token_windows(column tokens, std::uint64_t context, std::uint64_t stride, std::uint64_t vocabulary,
                std::string fingerprint)
      : tokens_(std::move(tokens)),
        widen_(widen_from(tokens_.spec.type)),
        context_(context),
        stride_(stride),
        limit_(vocabulary == 0 ? std::uint64_t{std::numeric_limits<std::int64_t>::max()} : vocabulary),
        size_((tokens_.samples() - context - 1) / stride + 1),
        columns_{{"context", dtype::i64, {context}, {}}, {"target", dtype::i64, {context}, {}}},
        fingerprint_(std::move(fingerprint)) {}

  [[nodiscard]] std::uint64_t size() const noexcept override { return size_; }
  [[nodiscard]] std::span<const column_spec> columns() const noexcept override { return columns_; }
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_; }

 protected:
  [[nodiscard]] expected<void> read(std::span<const std::uint64_t> samples, batch& out) const override {
    auto window = std::vector<std::int64_t>(context_ + 1);
    auto contexts = out.values<std::int64_t>("context");
    auto targets = out.values<std::int64_t>("target");
    const auto token_bytes = size_of(tokens_.spec.type);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const auto first = samples[i] * stride_;
      const auto good = widen_(tokens_.bytes.data() + first * token_bytes, window.size(), limit_, window.data());
      if (good < window.size())
        return fail(errc::damaged, fmt::format("column '{}': the token at {} is not from 0 to {}", tokens_.spec.name,
                                               first + good, limit_ - 1));
      std::copy_n(window.begin(), context_, contexts.subspan(i * context_).begin());
      std::copy_n(window.begin() + 1, context_, targets.subspan(i * context_).begin());
    }
    return {};
  }

 private:
  column tokens_;
  widen_function widen_;
  std::uint64_t context_;
  std::uint64_t stride_;
  std::uint64_t limit_;
  std::uint64_t size_;
  std::vector<column_spec> columns_;
  std::string fingerprint_;
};

} // namespace

expected<data_set_ptr> make_token_windows(column tokens, const token_window_options& options) {
  if (widen_from(tokens.spec.type) == nullptr || tokens.spec.elements() != 1)
    return fail(errc::invalid_argument,
                fmt::format("column '{}' is {}: tokens are single integers of at most 64 bits with a sign",
                            tokens.spec.name, describe(tokens.spec)));
  if (options.context == 0)
    return fail(errc::invalid_argument, "token_window_options::context is 0: a window needs at least one token");
  if (options.context >= tokens.samples())
    return fail(errc::invalid_argument,
                fmt::format("column '{}' has {} tokens: a context of {} needs at least one more than that",
                            tokens.spec.name, tokens.samples(), options.context));
  const auto stride = options.stride == 0 ? options.context : options.stride;
  content_hash hash;
  hash.add(std::string_view{"troupe token windows 1"});
  hash.add(std::string_view{options.name});
  hash.add(std::string_view{to_string(tokens.spec.type)});
  hash.add(tokens.bytes.size());
  hash.add(options.context);
  hash.add(stride);
  constexpr std::size_t piece = std::size_t{64} << 20;
  for (std::size_t at = 0; options.name.empty() && at < tokens.bytes.size(); at += piece) {
    hash.add(tokens.bytes.subspan(at, std::min(piece, tokens.bytes.size() - at)));
    if (options.heartbeat)
      options.heartbeat();
  }
  return std::make_shared<const token_windows>(std::move(tokens), options.context, stride, options.vocabulary,
                                               hash.digest());
}

} // namespace troupe::data

#pragma once

#include <troupe/data/column.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <functional>
#include <string>

namespace troupe::data {

struct token_window_options {
  /// Tokens in a sample's context.
  std::uint64_t context = 0;
  /// Tokens from the beginning of one window to that of the next. 0: `context`, so that no token is a target twice an
  /// epoch.
  std::uint64_t stride = 0;
  /// The number of different tokens; each token is checked against it when it is read. 0: not checked.
  std::uint64_t vocabulary = 0;
  /// Identifies the content, in place of a hash over all tokens, as in `make_table`. Empty: hash.
  std::string name = {};
  /// Called from time to time while tokens are hashed, so that a worker that reads for minutes is not taken for a hang:
  /// `[&] { ctx.heartbeat(); }`. May be empty.
  std::function<void()> heartbeat = {};
};

/// Windows over a long row of tokens, such as `read_raw("train.bin", "tokens", dtype::u16)` or a one-dimensional NPY
/// file: a sample is `context` tokens (column "context", i64 {context}) and as many that follow each of them (column
/// "target", i64 {context}: the same, one token later). Tokens at the end that do not fill a window are left out. The
/// values stay where the column has them. Fails with `errc::invalid_argument` for a column that is not of single
/// integers, a context of 0, or fewer than context + 1 tokens. Fetching fails with `errc::damaged`, naming its place,
/// for a token outside of the vocabulary.
[[nodiscard]] expected<data_set_ptr> make_token_windows(column tokens, const token_window_options& options);

} // namespace troupe::data

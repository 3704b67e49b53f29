#pragma once

#include <troupe/error.hpp>
#include <troupe/inference/predictor.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <gpt/text.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gpt {

/// Writes text with the model of a checkpoint, through a predictor of LibTorch's. Used by one thread at a time.
class writer {
 public:
  /// Fails with `errc::not_found` for a checkpoint of another program, and as `libtorch::load_predictor` does. Fixes
  /// the number of LibTorch's threads in this process at 1, so that the text does not depend on the machine's cores.
  [[nodiscard]] static troupe::expected<writer> open(const troupe::serialization::checkpoint& source);

  /// `count` characters that follow `prompt` (without it; an empty one stands for the first character known, which is
  /// the newline in most texts). Each is drawn from the softmax of the scores divided by `temperature`; at 0 it is the
  /// likeliest. The same arguments give the same text. Fails with `errc::invalid_argument` for a prompt with characters
  /// that the model does not know, and for scores that are no numbers.
  [[nodiscard]] troupe::expected<std::string> write(std::string_view prompt, std::size_t count, double temperature,
                                                    std::uint64_t seed);

 private:
  writer(vocabulary characters, std::size_t block, troupe::inference::predictor_ptr model)
      : characters_(std::move(characters)), block_(block), model_(std::move(model)) {}

  vocabulary characters_;
  std::size_t block_;
  troupe::inference::predictor_ptr model_;
};

} // namespace gpt

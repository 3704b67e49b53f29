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

/// Generates text with the model of a checkpoint, through a LibTorch predictor. Used from one thread at a time.
class writer {
 public:
  /// Fails with `errc::not_found` for a checkpoint of another program, with `errc::unsatisfiable` for a model of
  /// tokens, and as `libtorch::load_predictor` does. Sets
  /// LibTorch's number of threads in this process to 1, so that the text does not depend on the machine's cores.
  [[nodiscard]] static troupe::expected<writer> open(const troupe::serialization::checkpoint& source);

  /// Generates `count` characters that follow `prompt`, which is not part of the result. An empty prompt means the
  /// first character of the vocabulary, which is the newline in most texts. Each character is drawn from the softmax of
  /// the scores divided by `temperature`; at 0 the likeliest is taken. The same arguments give the same text. Fails
  /// with `errc::invalid_argument` for a prompt with unknown characters and for scores that are not finite.
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

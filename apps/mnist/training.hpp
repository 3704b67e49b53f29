#pragma once

#include <troupe/train_context.hpp>

#include <string>

namespace mnist {

inline constexpr std::size_t classes = 10;

/// The metric of the last step that counts the held-out images of class `is` that were predicted as class `predicted`.
inline std::string confusion_name(std::size_t is, std::size_t predicted) {
  return "confusion/" + std::to_string(is) + "/" + std::to_string(predicted);
}

/// The training function: a small convolutional network, or a TorchScript model. The configuration has "batch",
/// "learning_rate" and "held_out", and a model's digest as "model"; the options have "images", "labels" (paths of IDX
/// files) and "evaluate_every", if "held_out" is 0 "test_images" and "test_labels", and the model's path as "model".
void train(troupe::train_context& ctx);

} // namespace mnist

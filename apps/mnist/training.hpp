#pragma once

#include <troupe/train_context.hpp>

#include <cstdint>
#include <string>

namespace mnist {

inline constexpr std::size_t classes = 10;

/// Under which name the last step reports how many held-out images of class `is` were taken for class `taken_for`.
inline std::string confusion_name(std::size_t is, std::size_t taken_for) {
  return "confusion/" + std::to_string(is) + "/" + std::to_string(taken_for);
}

/// The training function: a small convolutional network. The configuration has "batch", "learning_rate" and "held_out";
/// the options "images", "labels" (paths of IDX files) and "evaluate_every", and, where "held_out" is 0, "test_images"
/// and "test_labels".
void train(troupe::train_context& ctx);

} // namespace mnist

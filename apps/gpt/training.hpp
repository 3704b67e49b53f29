#pragma once

#include <troupe/train_context.hpp>

namespace gpt {

/// The training function: a character-level transformer. The configuration has "block_size", "layers", "heads",
/// "embedding", "dropout", "batch", "learning_rate", "min_learning_rate", "warmup_steps", "decay_steps",
/// "weight_decay", "beta2" and "gradient_clip"; the options have "text" (a path) and "evaluate_every". The last step
/// and every `evaluate_every`th step report "validation_loss" in nats per character.
void train(troupe::train_context& ctx);

} // namespace gpt

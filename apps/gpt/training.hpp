#pragma once

#include <troupe/train_context.hpp>

namespace gpt {

/// The training function: a transformer on characters or tokens. The configuration has "block_size", "layers", "heads",
/// "embedding", "dropout", "batch", "learning_rate", "min_learning_rate", "warmup_steps", "decay_steps",
/// "weight_decay", "beta2" and "gradient_clip", and "vocabulary" for tokens; the options have "evaluate_every" and
/// "text" (a path), or "tokens" and "validation_tokens" (paths). The last step and every `evaluate_every`th step report
/// "validation_loss" in nats per character or token.
void train(troupe::train_context& ctx);

} // namespace gpt

#pragma once

#include <troupe/train_context.hpp>

namespace charlm {

/// The training function: what each worker process does. The configuration has "embedding", "hidden" and "batch",
/// the options "text" (a path) and "evaluate_every".
void train(troupe::train_context& ctx);

} // namespace charlm

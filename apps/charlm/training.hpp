#pragma once

#include <troupe/framework.hpp>
#include <troupe/train_context.hpp>

#include <memory>

namespace charlm {

/// The training function that each worker process runs. The configuration has "embedding", "hidden" and "batch", and
/// may have "learning_rate", the highest of Adam; the options have "text" (a path) and "evaluate_every".
void train(troupe::train_context& ctx);

/// Reports the libraries that determine the bits of arithmetic on a GPU.
[[nodiscard]] std::shared_ptr<troupe::framework> make_framework();

} // namespace charlm

#pragma once

#include <troupe/framework.hpp>
#include <troupe/train_context.hpp>

#include <memory>

namespace charlm {

/// The training function: what each worker process does. The configuration has "embedding", "hidden" and "batch",
/// the options "text" (a path) and "evaluate_every".
void train(troupe::train_context& ctx);

/// Tells what its arithmetic on a GPU depends on.
[[nodiscard]] std::shared_ptr<troupe::framework> make_framework();

} // namespace charlm

#pragma once

#include <troupe/app.hpp>

#include <memory>
#include <vector>

namespace troupe::runtime {

/// Each backend of these functions once, in the order in which they are named.
[[nodiscard]] std::vector<std::shared_ptr<backend>> backends_of(const std::vector<named_function>& functions);

/// Calls a function between its backends' beginning and end.
void run_with_backends(const named_function& function, train_context& ctx);

} // namespace troupe::runtime

#pragma once

#include <troupe/app.hpp>

#include <memory>
#include <string>
#include <vector>

namespace troupe::runtime {

/// Each framework of these functions once, in the order in which they are named.
[[nodiscard]] std::vector<std::shared_ptr<framework>> frameworks_of(const std::vector<function>& functions);

/// What the arithmetic of a function's frameworks depends on, for people: "libtorch: threads 1, version 1.13.1". Empty
/// without any.
[[nodiscard]] std::string describe_frameworks(const function& train);

/// Calls a function between its frameworks' beginning and end.
void run_with_frameworks(const function& train, train_context& ctx);

} // namespace troupe::runtime

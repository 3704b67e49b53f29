#pragma once

#include <troupe/app.hpp>

#include <memory>
#include <string>
#include <vector>

namespace troupe::runtime {

/// Each framework of these functions once, in the order in which they are named.
[[nodiscard]] std::vector<std::shared_ptr<framework>> frameworks_of(const std::vector<function>& functions);

/// All that determines the arithmetic of a function's frameworks, for people: "libtorch: threads 1, version 1.13.1".
/// Empty without frameworks.
[[nodiscard]] std::string describe_frameworks(const function& train);

/// Calls a function between its frameworks' beginning and end.
void run_with_frameworks(const function& train, train_context& ctx);

} // namespace troupe::runtime

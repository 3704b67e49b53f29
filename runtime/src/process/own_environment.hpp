#pragma once

#include <map>
#include <string>
#include <vector>

namespace troupe::runtime {

/// This process's environment with these variables added or replaced, as "NAME=VALUE".
[[nodiscard]] std::vector<std::string> environment_with(const std::map<std::string, std::string>& additions);

} // namespace troupe::runtime

#pragma once

#include <map>
#include <string>
#include <vector>

namespace troupe::runtime {

/// This process's environment variables.
[[nodiscard]] std::map<std::string, std::string> own_environment();

/// As "NAME=VALUE".
[[nodiscard]] std::vector<std::string> to_texts(const std::map<std::string, std::string>& variables);

/// This process's environment with these variables added or replaced, as "NAME=VALUE".
[[nodiscard]] std::vector<std::string> environment_with(const std::map<std::string, std::string>& additions);

} // namespace troupe::runtime

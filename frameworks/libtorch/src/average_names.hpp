#pragma once

#include <string>

namespace troupe::libtorch {

/// A parameter's average is tracked under its name behind this.
inline const std::string average_prefix = "average/";

} // namespace troupe::libtorch

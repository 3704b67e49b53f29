#pragma once

#include <troupe/error.hpp>

#include <functional>
#include <string>
#include <vector>

namespace troupe::collectives {

/// An all-gather of one blob per rank over the control plane: takes this rank's blob, returns all blobs in rank order.
using address_exchange = std::function<expected<std::vector<std::string>>(std::string mine)>;

} // namespace troupe::collectives

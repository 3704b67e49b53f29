#pragma once

#include "nccl/library.hpp"

#include <troupe/collectives/nccl_group.hpp>

#include <memory>

namespace troupe::collectives {

/// `make_nccl_group` with any function table.
[[nodiscard]] expected<std::unique_ptr<device_group>> make_nccl_group(std::shared_ptr<const nccl::library> library,
                                                                      std::shared_ptr<device> where,
                                                                      nccl_options options,
                                                                      const address_exchange& exchange);

} // namespace troupe::collectives

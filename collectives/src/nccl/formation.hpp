#pragma once

#include "nccl/owned_comm.hpp"

#include <troupe/collectives/nccl_group.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace troupe::collectives::nccl {

/// The previous generation's group, which can be shrunk. Without one all are 0.
struct previous_group {
  owned_comm* communicator = nullptr;
  std::uint64_t generation = 0;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;
};

/// Forms the communicator of this generation together with the other ranks: by shrinking the previous one if all ranks
/// have it, otherwise from a new id. Destroys `options.predecessor` in between. `who` names the group in errors.
[[nodiscard]] expected<comm> form_communicator(std::shared_ptr<const library> api, std::shared_ptr<device> where,
                                               const previous_group& previous, nccl_options& options,
                                               const address_exchange& exchange, const std::string& who);

} // namespace troupe::collectives::nccl

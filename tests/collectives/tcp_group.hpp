#pragma once

#include "rank_group.hpp"

namespace troupe::collectives::testing {

/// Ranks as threads of this process, connected over loopback.
class tcp_group : public rank_group {
 public:
  explicit tcp_group(std::uint32_t world_size, std::chrono::milliseconds deadline = std::chrono::seconds{120},
                     generation_id generation = generation_id{1})
      : rank_group(swept_transport::tcp, world_size, deadline, generation) {}
};

} // namespace troupe::collectives::testing

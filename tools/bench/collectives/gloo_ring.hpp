#pragma once

#include "contender.hpp"
#include "rank_link.hpp"

#include <memory>

namespace troupe::bench {

/// Gloo's group of all ranks, over loopback: a peer of the benchmark, and no part of Troupe.
class gloo_peer {
 public:
  virtual ~gloo_peer() = default;

  /// Gloo's own ring, in place.
  [[nodiscard]] virtual std::unique_ptr<contender> make(shared_floats data) = 0;
};

/// All ranks call it. Throws if the benchmark is built without Gloo.
[[nodiscard]] std::shared_ptr<gloo_peer> connect_gloo(rank_link& link);

} // namespace troupe::bench

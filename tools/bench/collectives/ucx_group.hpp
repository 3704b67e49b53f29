#pragma once

#include "rank_link.hpp"

#include <troupe/collectives/communicator.hpp>

#include <memory>

namespace troupe::bench {

/// Troupe's collectives over UCX's messages in place of its own TCP: a peer of the benchmark, and no part of Troupe.
/// All ranks call it. Throws if the benchmark is built without UCX.
[[nodiscard]] std::unique_ptr<collectives::communicator> connect_ucx(rank_link& link);

} // namespace troupe::bench

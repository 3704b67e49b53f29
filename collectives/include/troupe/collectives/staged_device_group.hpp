#pragma once

#include <troupe/collectives/communicator.hpp>
#include <troupe/collectives/device_group.hpp>
#include <troupe/error.hpp>

#include <memory>

namespace troupe::collectives {

/// A group that reduces buckets in device memory on the host, through any communicator: it copies them into pinned
/// memory that the peers can read, reduces them there and copies the result back, with all parts in flight at the same
/// time. For ranks that share a GPU, and for devices that cannot communicate. Over shared memory the host copies
/// nothing.
///
/// `group` outlives the result. Other calls on it wait for running reductions, as for started calls; aborting either
/// aborts both. `all_reduce_fast` sums in the order of `group`.
[[nodiscard]] expected<std::unique_ptr<device_group>>
make_staged_device_group(std::shared_ptr<device> where, communicator& group, hang_policy on_hang = {});

} // namespace troupe::collectives

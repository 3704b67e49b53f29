#pragma once

#include <troupe/collectives/communicator.hpp>
#include <troupe/collectives/device_group.hpp>
#include <troupe/error.hpp>

#include <memory>

namespace troupe::collectives {

/// Buckets in device memory that are reduced on the host, by any communicator: copied into pinned memory that the peers
/// can read, reduced there, and copied back, part by part and all at the same time. For ranks that share a GPU, and
/// wherever devices cannot talk to each other. Over shared memory the host copies nothing itself.
///
/// `group` outlives what is returned. While reductions are on their way its other calls wait for them, as for calls
/// that were started; an abort of either ends both. `all_reduce_fast` sums as `group` does.
[[nodiscard]] expected<std::unique_ptr<device_group>>
make_staged_device_group(std::shared_ptr<device> where, communicator& group, hang_policy on_hang = {});

} // namespace troupe::collectives

#pragma once

#include <troupe/collectives/device_group.hpp>
#include <troupe/collectives/gloo_communicator.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

namespace troupe::collectives {

/// What is done when NCCL does not let go of a group that was given up: its kernels may go on writing, so that this
/// process must not report, and must not stay. All are called from the group's own threads.
struct hang_policy {
  /// What the collectives actor answers who asks for leave to die.
  struct leave {
    /// Nobody else has the state: `copy_out` comes before the end.
    bool is_last_holder = false;
  };

  /// Returns once this process may end; others that hang, too, wait for it to be gone. An error counts as leave.
  std::function<expected<leave>()> ask_leave;
  /// Takes the state off the device, on a stream of its own, to where it outlives the process.
  std::function<expected<void>()> copy_out;
  /// Ends the process; `why` is for its log. Default: SIGKILL to itself, which counts as a loss.
  std::function<void(const error& why)> end_process;

  /// The longest that `revoke` and `abort` of NCCL may take, each; and then leave, and the copy.
  std::chrono::milliseconds abort_deadline = std::chrono::seconds{5};
  std::chrono::milliseconds leave_deadline = std::chrono::seconds{30};
  std::chrono::milliseconds copy_deadline = std::chrono::seconds{60};
};

/// A place in a group that talks over NCCL.
struct nccl_options {
  rank_id rank;
  std::uint32_t world_size = 1;
  generation_id generation;

  /// The longest that one reduction may take.
  std::chrono::milliseconds deadline = std::chrono::seconds{300};

  /// The longest that the group's forming may take once ids are exchanged.
  std::chrono::milliseconds connect_deadline = std::chrono::seconds{60};

  /// The longest that a group may take to shrink before it is formed from a new id. What fails on one rank costs the
  /// others this long.
  std::chrono::milliseconds shrink_deadline = std::chrono::seconds{5};

  /// Ends `make_nccl_group` early, once an exchange has returned.
  std::stop_token cancelled = {};

  hang_policy on_hang = {};

  /// The group of the generation before, if this process was in it: finished, mostly failed or aborted. If all ranks
  /// hand in theirs, in the same order, and NCCL is 2.28.7 or later, the new one is the old one without those that are
  /// gone; if that fails, and else, it is formed from a new id.
  std::unique_ptr<device_group> predecessor = {};
};

/// "NCCL 2.28.9". Opens libnccl.so.2 when it is first called. Fails with `errc::unsatisfiable` where there is none, or
/// one before 2.14, which has no calls that can be given up.
[[nodiscard]] expected<std::string> find_nccl();

/// Forms the group: every rank of the generation calls it, each with a GPU of its own, and it returns once all are
/// connected. Calls `exchange` twice. What NCCL sends off a host is clear text, and it checks nobody; it listens on the
/// interfaces that NCCL_SOCKET_IFNAME names, or on one that it picks.
///
/// Fails with the exchange's error, `errc::unsatisfiable` (no NCCL), `errc::invalid_argument` (two ranks on one GPU),
/// `errc::mismatch` (a blob is of another generation or group), `errc::timed_out`, `errc::aborted` (cancelled),
/// `errc::device_error`.
[[nodiscard]] expected<std::unique_ptr<device_group>>
make_nccl_group(std::shared_ptr<device> where, nccl_options options, const address_exchange& exchange);

} // namespace troupe::collectives

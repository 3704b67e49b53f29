#pragma once

#include "worker/group/data_plane.hpp"
#include "worker/life/driver_client.hpp"
#include "worker/state/state_stager.hpp"

#include <troupe/collectives/shared_pool.hpp>
#include <troupe/messages/staging.hpp>
#include <troupe/tracked_state.hpp>

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>

namespace troupe::runtime {

/// What a worker forms staging groups with.
struct staging_means {
  data_plane network;
  driver_client& driver;
  /// `driver_client::exchange` on the training thread, `driver_client::exchange_staging` on the stager's.
  expected<exchange_result> (driver_client::*exchange)(const exchange_request&);
  /// Or why there is none.
  expected<std::shared_ptr<collectives::shared_pool>> memory;
};

/// Forms the communicator of a staging group. Returns soon after `cancelled` is asked to stop, except from the exchange
/// over the control plane, which ends when a rank reports that it has given up.
[[nodiscard]] expected<std::unique_ptr<collectives::communicator>>
form_staging_group(const staging_means& means, const staging_place& place, std::stop_token cancelled);

/// A joiner's way to the members' state while they continue to train: it receives the state of a boundary and then,
/// frame by frame, the reduced gradients and evaluations since. One staging group at a time. Used by the training
/// thread, except for `abort`.
class state_catch_up {
 public:
  /// A staging group begins: from here on `abort` ends it.
  void begin();
  /// Forms the group and takes the state over it. Returns the step after which the state is so.
  [[nodiscard]] expected<step_id> receive(const staging_means& means, const staging_place& place, tracked_state& state,
                                          transferred_extras& extras);

  /// The next frame from the members, which stays until it is dropped. Waits for it. Once this fails, the members are
  /// lost for good.
  [[nodiscard]] expected<staged_frame*> frame();
  /// The next call of `frame` waits for another one.
  void drop_frame() noexcept { frame_.reset(); }
  [[nodiscard]] bool has_lost_members() const noexcept { return has_lost_members_; }

  /// How long it took to repeat the last step of this group.
  void note_repeat(std::chrono::nanoseconds took) noexcept { repeat_took_ = took; }
  [[nodiscard]] std::optional<std::chrono::nanoseconds> repeat_took() const noexcept { return repeat_took_; }

  /// The group is over. Its connections close on a thread of their own, for the members may be waiting.
  void close();

  /// Ends the group that is formed or being formed. From any thread.
  void abort(const error& reason);

 private:
  std::optional<staged_frame> frame_;
  bool has_lost_members_ = false;
  std::optional<std::chrono::nanoseconds> repeat_took_;
  /// The end of the group before.
  std::future<void> closing_;

  /// For the rest.
  std::mutex mutex_;
  std::stop_source cancel_;
  std::unique_ptr<staged_state> group_;
};

} // namespace troupe::runtime

#pragma once

#include "worker/group/data_plane.hpp"
#include "worker/life/driver_client.hpp"
#include "worker/state/state_stager.hpp"

#include <troupe/messages/staging.hpp>
#include <troupe/tracked_state.hpp>

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>

namespace troupe::runtime {

/// Forms the communicator of a staging group. `ask` is the exchange over the control plane; it returns soon after
/// `cancelled` is asked to stop.
[[nodiscard]] expected<std::unique_ptr<collectives::communicator>>
form_staging_group(const data_plane& network, const staging_place& place, std::stop_token cancelled,
                   const std::function<expected<exchange_result>(const exchange_request&)>& ask);

/// A joiner's way to the members' state while they continue to train: it receives the state of a boundary and then,
/// frame by frame, the reduced gradients and evaluations since. One staging group at a time. Used by the training
/// thread, except for `abort`.
class state_catch_up {
 public:
  state_catch_up(data_plane network, driver_client& driver) : network_(std::move(network)), driver_(driver) {}

  /// A staging group begins: from here on `abort` ends it.
  void begin();
  /// Forms the group and takes the state over it. Returns the step after which the state is so.
  [[nodiscard]] expected<step_id> receive(const staging_place& place, tracked_state& state, transferred_extras& extras);

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
  data_plane network_;
  driver_client& driver_;
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

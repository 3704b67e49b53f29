#pragma once

#include "worker/group/data_plane.hpp"
#include "worker/group/quiescence_gate.hpp"
#include "worker/life/driver_client.hpp"
#include "worker/state/device_copier.hpp"

#include <troupe/collectives/communicator.hpp>
#include <troupe/collectives/device.hpp>
#include <troupe/collectives/device_group.hpp>
#include <troupe/collectives/nccl_group.hpp>
#include <troupe/collectives/shared_pool.hpp>
#include <troupe/messages/begin.hpp>
#include <troupe/messages/regroup.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace troupe::runtime {

/// Where a worker's device and the groups between devices come from. Tests inject others.
struct device_factories {
  std::function<expected<std::shared_ptr<collectives::device>>()> open_device = [] {
    return collectives::open_device(0);
  };
  /// NCCL's version, as this process finds it.
  std::function<expected<std::string>()> find_nccl = [] { return collectives::find_nccl(); };
  std::function<expected<std::unique_ptr<collectives::device_group>>(
      std::shared_ptr<collectives::device>, collectives::nccl_options, const collectives::address_exchange&)>
      make_nccl_group = [](const std::shared_ptr<collectives::device>& where, collectives::nccl_options options,
                           const collectives::address_exchange& exchange) {
        return collectives::make_nccl_group(where, std::move(options), exchange);
      };
};

struct opened_gpu {
  std::shared_ptr<collectives::device> device;
  collectives::device_stream stream;
  std::shared_ptr<device_copier> copier;
};

/// The group of workers of one generation: its communicator, the device group beside it where the worker has a GPU, and
/// the memory that outlives generations. Used by the training thread, but for `abort`, `describe` and
/// `waits_for_own_gpu`, which come from any thread. Throws `exception` with the errors of communicators and devices.
class worker_group {
 public:
  struct settings {
    run_id run;
    worker_id worker;
    data_plane network;
    device_settings device;
    /// The longest that one collective operation may take.
    std::chrono::milliseconds deadline;
    device_factories factories;
    /// Saves the state before a hanging device ends this process, if no other worker has the state. From a thread of
    /// the device group.
    std::function<expected<void>()> save_last_copy;
  };

  worker_group(settings how, driver_client& driver, quiescence_gate& gate)
      : how_(std::move(how)), driver_(driver), gate_(gate) {}

  /// After this call, `abort` with this place's generation ends groups that are formed or being formed.
  void begin_generation(const group_place& place);
  /// Forms the communicator of the generation.
  void form();
  /// Ends both groups. After it returns, nothing writes to this worker's memory. Quick only if the groups were aborted;
  /// aborts them with `reason` unless its code is `none`.
  void close(const error& reason, step_id step);

  /// The ranks that did not answer when the group was closed, or that forming did not reach.
  [[nodiscard]] std::vector<rank_id> take_unreachable() { return std::exchange(unreachable_, {}); }

  /// Throws if the communicator was lost.
  [[nodiscard]] collectives::communicator& communicator();
  [[nodiscard]] bool has_communicator() const noexcept { return communicator_ != nullptr; }

  /// Memory that the other workers of this host can read; lives as long as the process. Made by the first call. From
  /// the training thread.
  [[nodiscard]] expected<std::shared_ptr<collectives::shared_pool>> shared_memory();

  [[nodiscard]] bool has_gpu() const noexcept { return how_.device.gpus > 0; }
  /// Opened by the first call. Throws if this worker has none.
  [[nodiscard]] opened_gpu& gpu();
  /// The group for buckets in device memory. Formed by the first call in a generation, which all ranks make alike;
  /// `step` is the last step whose body has returned.
  [[nodiscard]] collectives::device_group& device_group(step_id step);
  /// Whether `group` is the live group of this generation.
  [[nodiscard]] bool is_device_group(const collectives::device_group& group);
  /// Ends pending operations in the groups of this generation.
  void give_up(const error& reason) noexcept;

  /// Makes pending and later operations of this or an earlier generation fail, whether its group is formed or still
  /// forming. Later generations are unaffected.
  void abort(generation_id generation, const error& reason);
  /// The group's activity and the ranks for which it waits, for people.
  [[nodiscard]] std::string describe();
  /// Whether it waits for kernels of this worker's own GPU, which are user code.
  [[nodiscard]] bool waits_for_own_gpu() noexcept;

 private:
  [[nodiscard]] std::unique_ptr<collectives::communicator> make_communicator();
  [[nodiscard]] std::unique_ptr<collectives::device_group> make_device_group(step_id step);
  [[nodiscard]] collectives::hang_policy on_hang();
  [[nodiscard]] expected<std::string> find_nccl();
  [[nodiscard]] expected<std::vector<std::string>> exchange(std::uint64_t number, std::string mine);
  void close_device_group(std::unique_ptr<collectives::device_group> group, step_id step);

  settings how_;
  driver_client& driver_;
  quiescence_gate& gate_;
  group_place place_;
  std::shared_ptr<collectives::shared_pool> pool_;
  std::optional<opened_gpu> gpu_;
  /// NCCL's group of the previous generation, from which the next can be made.
  std::unique_ptr<collectives::device_group> predecessor_;
  /// The interface given to NCCL when it was first opened.
  std::optional<std::string> nccl_interface_;
  /// The exchanges over the control plane that device groups have made in this generation.
  std::uint64_t device_exchanges_ = 0;

  std::vector<rank_id> unreachable_;

  /// Guards the members below, which `abort` and `describe` use.
  std::mutex mutex_;
  generation_id generation_;
  std::optional<error> aborted_;
  std::stop_source cancel_forming_;
  std::unique_ptr<collectives::communicator> communicator_;
  /// Of the same generation; null before its first use.
  std::unique_ptr<collectives::device_group> device_group_;
};

} // namespace troupe::runtime

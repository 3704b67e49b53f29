#include "worker/group/worker_group.hpp"
#include "worker/group/group_formation.hpp"
#include "worker/group/nccl_interface.hpp"

#include <troupe/actors/decisions/transport_choice.hpp>
#include <troupe/collectives/device_offer.hpp>
#include <troupe/collectives/staged_device_group.hpp>

#include <cstdio>
#include <tuple>

namespace troupe::runtime {

namespace {

/// Aborts a group that was not shrunk into the next one: its lost ranks cannot leave it together with this one.
class unused_predecessor {
 public:
  explicit unused_predecessor(std::unique_ptr<collectives::device_group> group) : group_(std::move(group)) {}
  unused_predecessor(const unused_predecessor&) = delete;
  unused_predecessor& operator=(const unused_predecessor&) = delete;
  ~unused_predecessor() {
    if (group_)
      group_->abort({errc::stale_generation, "another group has taken its place"});
  }

  [[nodiscard]] std::unique_ptr<collectives::device_group> take() { return std::move(group_); }

 private:
  std::unique_ptr<collectives::device_group> group_;
};

} // namespace

void worker_group::begin_generation(const group_place& place) {
  place_ = place;
  device_exchanges_ = 0;
  auto lock = std::lock_guard{mutex_};
  generation_ = place.generation;
  aborted_.reset();
  cancel_forming_ = {};
}

void worker_group::form() {
  auto formed = make_communicator();
  auto lock = std::lock_guard{mutex_};
  communicator_ = std::move(formed);
  if (aborted_)
    communicator_->abort(*aborted_);
}

void worker_group::close(const error& reason, step_id step) {
  auto communicator = std::unique_ptr<collectives::communicator>{};
  auto on_device = std::unique_ptr<collectives::device_group>{};
  {
    auto lock = std::lock_guard{mutex_};
    communicator = std::move(communicator_);
    on_device = std::move(device_group_);
  }
  if (communicator)
    unreachable_ = communicator->unanswering();
  // The driver's abort no longer reaches this group, and this worker may be the first to notice the loss.
  if (on_device && reason.code != errc::none)
    on_device->abort(reason);
  close_device_group(std::move(on_device), step);
}

void worker_group::close_device_group(std::unique_ptr<collectives::device_group> group, step_id step) {
  if (!group)
    return;
  const auto quiet = quiescence_gate::scope{gate_, step};
  static_cast<void>(group->finish());
  if (group->can_be_predecessor())
    predecessor_ = std::move(group);
}

collectives::communicator& worker_group::communicator() {
  if (communicator_ == nullptr)
    throw exception{errc::aborted, "the group of workers is gone"};
  return *communicator_;
}

std::unique_ptr<collectives::communicator> worker_group::make_communicator() {
  group_formation how;
  how.place = how_.network.options("gradients");
  how.place.rank = place_.rank;
  how.place.world_size = place_.world_size;
  how.place.generation = place_.generation;
  how.place.host = place_.data_address;
  how.place.deadline = how_.deadline;
  how.place.cancelled = cancel_forming_.get_token();
  how.place.report_unreachable = [this](const std::vector<rank_id>& ranks) { unreachable_ = ranks; };
  how.transport = place_.transport;
  how.nodes = nodes_by_rank(place_.nodes, place_.world_size);
  how.on_node = {{place_.generation}, place_.local_rank, place_.local_world_size};
  if (uses_shared_memory(how.transport))
    how.pool = value_or_throw(shared_memory());
  how.results_for_devices = has_gpu();
  return value_or_throw(form_communicator(
      std::move(how), [this](std::string mine) { return exchange(0, std::move(mine)); }, driver_));
}

expected<std::shared_ptr<collectives::shared_pool>> worker_group::shared_memory() {
  if (!pool_) {
    TROUPE_TRY(pool_, collectives::shared_pool::make());
  }
  return pool_;
}

expected<std::vector<std::string>> worker_group::exchange(std::uint64_t number, std::string mine) {
  TROUPE_TRY(auto all, driver_.exchange({how_.run, place_.generation, number, place_.rank, std::move(mine)}));
  return std::move(all.blobs);
}

// -- devices ----------------------------------------------------------------------------------------------------------

opened_gpu& worker_group::gpu() {
  if (gpu_)
    return *gpu_;
  if (!has_gpu())
    throw exception{errc::invalid_argument,
                    "this worker has no GPU: set scaling.use_gpu, or scaling.resources_per_worker.gpus"};
  opened_gpu opened;
  opened.device = value_or_throw(how_.factories.open_device());
  opened.stream = value_or_throw(collectives::device_stream::make(opened.device));
  opened.copier = value_or_throw(device_copier::open(opened.device, opened.stream.handle()));
  gpu_ = std::move(opened);
  return *gpu_;
}

collectives::device_group& worker_group::device_group(step_id step) {
  if (device_group_)
    return *device_group_;
  std::ignore = communicator();
  auto formed = make_device_group(step);
  formed->set_deadline(how_.deadline);
  auto lock = std::lock_guard{mutex_};
  device_group_ = std::move(formed);
  if (aborted_)
    device_group_->abort(*aborted_);
  return *device_group_;
}

bool worker_group::is_device_group(const collectives::device_group& group) {
  auto lock = std::lock_guard{mutex_};
  return device_group_.get() == &group;
}

collectives::hang_policy worker_group::on_hang() {
  collectives::hang_policy result;
  result.request_exit = [this, generation = place_.generation]() -> expected<collectives::hang_policy::permit> {
    TROUPE_TRY(auto granted,
               driver_.request_exit({how_.run, generation, how_.worker, "the GPU does not let go of its group"}));
    return collectives::hang_policy::permit{granted.is_last_holder};
  };
  result.withdraw_exit = [this] { driver_.withdraw({how_.run, how_.worker}); };
  result.copy_out = how_.save_last_copy;
  return result;
}

expected<std::string> worker_group::find_nccl() {
  auto listens = set_nccl_interface(place_.data_address, nccl_interface_);
  if (!listens) {
    std::fprintf(stderr, "NCCL is not used: %s\n", listens.error().message.c_str());
    return fail(std::move(listens.error()));
  }
  return how_.factories.find_nccl();
}

/// All ranks tell what they have, and choose alike.
std::unique_ptr<collectives::device_group> worker_group::make_device_group(step_id step) {
  // The group before may end here.
  const auto quiet = quiescence_gate::scope{gate_, step};
  auto& device = gpu().device;
  auto before = unused_predecessor{std::move(predecessor_)};
  if (place_.world_size == 1)
    return value_or_throw(collectives::make_self_device_group(device, place_.generation, on_hang()));
  auto talk = [this](std::string mine) {
    return exchange(first_device_exchange + device_exchanges_++, std::move(mine));
  };
  const auto nccl = find_nccl();
  auto offers = value_or_throw(collectives::exchange_device_offers(
      place_.generation, {device->info().uuid, nccl ? *nccl : std::string{}}, talk));
  auto choice = value_or_throw(actors::choose_device_transport(how_.device.gradients, offers));
  if (place_.rank == rank_id{})
    std::fprintf(stderr, "gradients of GPUs go over %s\n", choice.reason.c_str());
  if (choice.transport == actors::device_transport::staged)
    return value_or_throw(collectives::make_staged_device_group(device, *communicator_, on_hang()));
  collectives::nccl_options options;
  options.rank = place_.rank;
  options.world_size = place_.world_size;
  options.generation = place_.generation;
  options.deadline = how_.deadline;
  options.cancelled = cancel_forming_.get_token();
  options.predecessor = before.take();
  options.on_hang = on_hang();
  options.note = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  return value_or_throw(how_.factories.make_nccl_group(device, std::move(options), talk));
}

// -- from any thread --------------------------------------------------------------------------------------------------

void worker_group::give_up(const error& reason) noexcept {
  auto lock = std::lock_guard{mutex_};
  if (communicator_)
    communicator_->abort(reason);
  if (device_group_)
    device_group_->abort(reason);
}

void worker_group::abort(generation_id generation, const error& reason) {
  auto lock = std::lock_guard{mutex_};
  if (generation < generation_)
    return;
  if (!aborted_)
    aborted_ = reason;
  cancel_forming_.request_stop();
  if (communicator_)
    communicator_->abort(*aborted_);
  if (device_group_)
    device_group_->abort(*aborted_);
}

std::string worker_group::describe() {
  auto lock = std::lock_guard{mutex_};
  auto text = communicator_ ? collectives::to_string(communicator_->record()) : "no communicator yet";
  return device_group_ ? text + "; GPU: " + device_group_->describe() : text;
}

bool worker_group::waits_for_own_gpu() noexcept {
  auto lock = std::lock_guard{mutex_};
  return device_group_ && device_group_->awaits_own_gpu();
}

} // namespace troupe::runtime

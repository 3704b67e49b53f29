#include "worker/state/state_catch_up.hpp"

#include <troupe/collectives/tcp_communicator.hpp>

#include <fmt/format.h>

#include <utility>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;

/// How long a staging group may take to form. The loss of a member meanwhile is not reported to the others.
constexpr auto forming_limit = 30s;

/// How long a rank of it waits for another: a joiner for a step of training, a member for a joiner's. A process that is
/// gone is found by other means.
constexpr auto staging_deadline = std::chrono::hours{24};

} // namespace

expected<std::unique_ptr<collectives::communicator>>
form_staging_group(const data_plane& network, const staging_place& place, std::stop_token cancelled,
                   const std::function<expected<exchange_result>(const exchange_request&)>& ask) {
  auto options = network.options(fmt::format("staging/{}", place.number));
  options.rank = place.rank;
  options.world_size = place.sources + place.joiners;
  options.generation = place.generation;
  options.host = place.data_address;
  options.deadline = forming_limit;
  options.cancelled = std::move(cancelled);
  auto formed =
      collectives::make_tcp_communicator(options, [&](std::string mine) -> expected<std::vector<std::string>> {
        TROUPE_TRY(auto all, ask({network.run, place.generation, place.number, place.rank, std::move(mine),
                                  place.sources + place.joiners}));
        return std::move(all.blobs);
      });
  if (formed)
    (*formed)->set_deadline(staging_deadline);
  return formed;
}

void state_catch_up::begin() {
  has_lost_members_ = false;
  repeat_took_.reset();
  auto lock = std::lock_guard{mutex_};
  cancel_ = {};
}

expected<step_id> state_catch_up::receive(const staging_place& place, tracked_state& state,
                                          transferred_extras& extras) {
  auto formed = form_staging_group(network_, place, cancel_.get_token(),
                                   [this](const exchange_request& message) { return driver_.exchange(message); });
  if (!formed)
    return fail(std::move(formed.error()));
  auto group = std::make_unique<staged_state>(std::move(*formed), place.sources);
  {
    auto lock = std::lock_guard{mutex_};
    group_ = std::move(group);
    if (cancel_.stop_requested())
      group_->abort({errc::aborted, "the members have lost one of them"});
  }
  return group_->receive(state, extras);
}

expected<staged_frame*> state_catch_up::frame() {
  if (frame_)
    return &*frame_;
  auto next = group_->next();
  has_lost_members_ = !next.has_value();
  if (!next)
    return fail(std::move(next.error()));
  frame_ = std::move(*next);
  return &*frame_;
}

void state_catch_up::close() {
  frame_.reset();
  auto over = std::unique_ptr<staged_state>{};
  {
    auto lock = std::lock_guard{mutex_};
    over = std::move(group_);
  }
  closing_ = std::async(std::launch::async, [over = std::move(over)]() mutable { over.reset(); });
}

void state_catch_up::abort(const error& reason) {
  auto lock = std::lock_guard{mutex_};
  cancel_.request_stop();
  if (group_)
    group_->abort(reason);
}

} // namespace troupe::runtime

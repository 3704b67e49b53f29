#include "worker/state/state_catch_up.hpp"

#include "worker/group/group_formation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;

/// How long a staging group may take to form. The loss of a member meanwhile is not reported to the others.
constexpr auto forming_limit = 30s;

/// How long a rank of it waits for another: a joiner for a step of training, a member for a joiner's. A process that is
/// gone is found by other means.
constexpr auto staging_deadline = std::chrono::hours{24};

/// `nodes` by rank.
descriptor_offer place_on_node(const staging_place& place, const std::vector<std::uint32_t>& nodes) {
  const auto own = nodes.begin() + place.rank.value;
  const auto count = [own](auto first, auto last) { return static_cast<std::uint32_t>(std::count(first, last, *own)); };
  return {{place.generation, place.number}, count(nodes.begin(), own), count(nodes.begin(), nodes.end())};
}

} // namespace

expected<std::unique_ptr<collectives::communicator>>
form_staging_group(const staging_means& means, const staging_place& place, std::stop_token cancelled) {
  group_formation how;
  how.place = means.network.options(fmt::format("staging/{}", place.number));
  how.place.rank = place.rank;
  how.place.world_size = place.sources + place.joiners;
  how.place.generation = place.generation;
  how.place.host = place.data_address;
  how.place.deadline = forming_limit;
  how.place.cancelled = std::move(cancelled);
  how.transport = place.transport;
  how.nodes = nodes_by_rank(place.nodes, how.place.world_size);
  if (uses_shared_memory(how.transport)) {
    how.on_node = place_on_node(place, how.nodes);
    TROUPE_TRY(how.pool, means.memory);
  }
  const auto exchange = [&](std::string mine) -> expected<std::vector<std::string>> {
    TROUPE_TRY(auto all, (means.driver.*means.exchange)({means.network.run, place.generation, place.number, place.rank,
                                                         std::move(mine), place.sources + place.joiners}));
    return std::move(all.blobs);
  };
  // The node does not tell when a rank is lost that others wait for; the driver does.
  if (how.transport == transport_kind::shm)
    TROUPE_TRY(exchange({}));
  auto formed = form_communicator(std::move(how), exchange, means.driver);
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

expected<step_id> state_catch_up::receive(const staging_means& means, const staging_place& place, tracked_state& state,
                                          transferred_extras& extras) {
  auto formed = form_staging_group(means, place, cancel_.get_token());
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

#include "node/descriptor_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::runtime {

namespace {

/// Checks an offer on its own.
std::optional<error> flaw(const descriptor_offer& what) {
  if (what.group.generation.value == 0)
    return error{errc::invalid_argument, "generation 0 is invalid: generations start at 1"};
  if (what.local_world_size > max_local_world_size)
    return error{errc::invalid_argument, fmt::format("at most {} workers of a node can exchange descriptors, not {}",
                                                     max_local_world_size, what.local_world_size)};
  if (what.local_rank >= what.local_world_size)
    return error{errc::invalid_argument, fmt::format("local rank {} is not below the local world size {}",
                                                     what.local_rank, what.local_world_size)};
  return std::nullopt;
}

} // namespace

offer_decision descriptor_table::offer(worker_id worker, const descriptor_offer& what) {
  offer_decision result;
  auto refuse = [&](error reason) {
    result.refused.push_back({worker, what.group, std::move(reason)});
    return result;
  };
  if (auto wrong = flaw(what))
    return refuse(std::move(*wrong));
  if (what.group < newest_)
    return refuse({errc::stale_generation, fmt::format("{} is over: {} of this run already exchanges descriptors",
                                                       to_string(what.group), to_string(newest_))});
  if (what.group > newest_) {
    refuse_all_waiting(
        {errc::stale_generation, fmt::format("{} is over: {} has begun", to_string(newest_), to_string(what.group))},
        result);
    begin(what);
    result.new_group = true;
  }
  if (std::ranges::find(places_, worker) != places_.end())
    return refuse(
        {errc::invalid_argument, fmt::format("worker {} has already offered its descriptors for {}; it can do so once",
                                             worker, to_string(what.group))});
  if (const auto* before = std::get_if<failed>(&exchange_))
    return refuse(before->reason);
  if (auto reason = contradiction(worker, what)) {
    refuse_all_waiting(*reason, result);
    exchange_ = failed{*reason};
    return refuse(std::move(*reason));
  }
  places_[what.local_rank] = worker;
  result.placed = true;
  if (!std::ranges::all_of(places_, [](const auto& place) { return place.has_value(); }))
    return result;
  exchange_ = complete{};
  for (const auto& place : places_)
    result.complete.push_back(*place);
  return result;
}

void descriptor_table::leave(worker_id worker) {
  if (is_open())
    std::ranges::replace(places_, std::optional{worker}, std::nullopt);
}

bool descriptor_table::waits(worker_id worker) const {
  return is_open() && std::ranges::find(places_, worker) != places_.end();
}

void descriptor_table::begin(const descriptor_offer& what) {
  newest_ = what.group;
  places_.assign(what.local_world_size, std::nullopt);
  exchange_ = open{};
}

std::optional<error> descriptor_table::contradiction(worker_id worker, const descriptor_offer& what) const {
  if (places_.size() != what.local_world_size)
    return error{errc::mismatch,
                 fmt::format("workers disagree about {}: worker {} counts {} workers on this node, others count {}",
                             to_string(what.group), worker, what.local_world_size, places_.size())};
  if (const auto& holder = places_[what.local_rank])
    return error{errc::mismatch,
                 fmt::format("workers disagree about {}: worker {} and worker {} both claim local rank {}",
                             to_string(what.group), *holder, worker, what.local_rank)};
  return std::nullopt;
}

void descriptor_table::refuse_all_waiting(const error& reason, offer_decision& result) {
  if (!is_open())
    return;
  for (auto& place : places_)
    if (auto worker = std::exchange(place, std::nullopt))
      result.refused.push_back({*worker, newest_, reason});
}

} // namespace troupe::runtime

#include "node/descriptor_table.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace troupe::runtime {

namespace {

std::string name(worker_id x) {
  return "worker " + std::to_string(x.value);
}

std::string name(generation_id x) {
  return "generation " + std::to_string(x.value);
}

/// What is wrong with an offer by itself.
std::optional<error> flaw(const descriptor_offer& what) {
  if (what.generation.value == 0)
    return error{errc::invalid_argument, "generations begin at 1"};
  if (what.local_world_size > max_local_world_size)
    return error{errc::invalid_argument, "an exchange of descriptors is among at most " +
                                             std::to_string(max_local_world_size) + " workers of a node, not " +
                                             std::to_string(what.local_world_size)};
  if (what.local_rank >= what.local_world_size)
    return error{errc::invalid_argument, "there is no local rank " + std::to_string(what.local_rank) + " among " +
                                             std::to_string(what.local_world_size) + " workers of a node"};
  return std::nullopt;
}

} // namespace

offer_decision descriptor_table::offer(worker_id worker, const descriptor_offer& what) {
  offer_decision result;
  auto refuse = [&](error reason) {
    result.refused.push_back({worker, what.generation, std::move(reason)});
    return result;
  };
  if (auto wrong = flaw(what))
    return refuse(std::move(*wrong));
  if (what.generation < newest_)
    return refuse({errc::stale_generation, name(what.generation) + " is over: " + name(newest_) +
                                               " of this run exchanges descriptors already"});
  if (what.generation > newest_) {
    refuse_all_waiting({errc::stale_generation, name(newest_) + " is over: " + name(what.generation) + " has begun"},
                       result);
    begin(what);
    result.new_generation = true;
  }
  if (std::ranges::find(places_, worker) != places_.end())
    return refuse({errc::invalid_argument, name(worker) + " has offered its descriptors for " + name(what.generation) +
                                               " before: it can do so once"});
  if (failure_)
    return refuse(*failure_);
  if (auto reason = contradiction(worker, what)) {
    failure_ = *reason;
    if (!complete_)
      refuse_all_waiting(*reason, result);
    return refuse(std::move(*reason));
  }
  places_[what.local_rank] = worker;
  result.placed = true;
  complete_ = std::ranges::all_of(places_, [](const auto& place) { return place.has_value(); });
  if (complete_)
    for (const auto& place : places_)
      result.complete.push_back(*place);
  return result;
}

void descriptor_table::leave(worker_id worker) {
  if (!complete_)
    std::ranges::replace(places_, std::optional{worker}, std::nullopt);
}

bool descriptor_table::waits(worker_id worker) const {
  return !complete_ && std::ranges::find(places_, worker) != places_.end();
}

void descriptor_table::begin(const descriptor_offer& what) {
  newest_ = what.generation;
  places_.assign(what.local_world_size, std::nullopt);
  complete_ = false;
  failure_.reset();
}

std::optional<error> descriptor_table::contradiction(worker_id worker, const descriptor_offer& what) const {
  if (places_.size() != what.local_world_size)
    return error{errc::mismatch, "workers disagree about " + name(what.generation) + ": " + name(worker) + " counts " +
                                     std::to_string(what.local_world_size) + " of them on this node, others count " +
                                     std::to_string(places_.size())};
  if (const auto& holder = places_[what.local_rank])
    return error{errc::mismatch, "workers disagree about " + name(what.generation) + ": " + name(*holder) + " and " +
                                     name(worker) + " both claim local rank " + std::to_string(what.local_rank)};
  return std::nullopt;
}

void descriptor_table::refuse_all_waiting(const error& reason, offer_decision& result) {
  if (complete_)
    return;
  for (auto& place : places_)
    if (auto worker = std::exchange(place, std::nullopt))
      result.refused.push_back({*worker, newest_, reason});
}

} // namespace troupe::runtime

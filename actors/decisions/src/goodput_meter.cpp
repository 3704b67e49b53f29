#include <troupe/actors/decisions/goodput_meter.hpp>

#include <algorithm>
#include <string_view>
#include <utility>

namespace troupe::actors {

namespace {

constexpr std::size_t most_pauses = 64;

double seconds_of(std::chrono::duration<double> time) {
  return time.count();
}

bool is_hold(time_use activity) noexcept {
  return activity == time_use::awaiting_capacity || activity == time_use::paused ||
         activity == time_use::awaiting_peers;
}

/// The part of a row's seconds that its steps in (after, up_to] took.
double part_of(const times_row& row, std::uint64_t after, std::uint64_t up_to) {
  const auto first = std::max(row.first.value, after + 1);
  const auto last = std::min(row.last.value, up_to);
  if (last < first)
    return 0;
  const auto all = static_cast<double>(row.last.value - row.first.value + 1);
  const auto seconds = static_cast<double>(row.compute_us + row.wait_us + row.barrier_us) / 1e6;
  return seconds * static_cast<double>(last - first + 1) / all;
}

} // namespace

std::string_view to_string(time_use activity) noexcept {
  switch (activity) {
  case time_use::starting:
    return "starting";
  case time_use::training:
    return "training";
  case time_use::restarting:
    return "restarting";
  case time_use::awaiting_capacity:
    return "awaiting_capacity";
  case time_use::paused:
    return "paused";
  case time_use::awaiting_peers:
    return "awaiting_peers";
  case time_use::ending:
    return "ending";
  }
  return "invalid";
}

void goodput_meter::enter(time_use next, clock::time_point now) {
  const auto spent = seconds_of(now - since_);
  seconds_[activity_] += spent;
  if (is_hold(activity_))
    held_ += spent;
  // What a start or a restart waited for is no part of a later pause.
  if (next == time_use::training && !is_hold(activity_))
    held_ = 0;
  activity_ = next;
  since_ = now;
}

void goodput_meter::begin_after(step_id step) {
  counted_ = again_ = step.value;
}

void goodput_meter::restart_after(step_id from, step_id furthest) {
  // What nobody was left to tell of.
  if (furthest.value > counted_) {
    sum_.productive_seconds += mean_step() * static_cast<double>(furthest.value - counted_);
    sum_.steps += furthest.value - counted_;
    counted_ = furthest.value;
  }
  again_ = from.value;
  held_ = 0;
}

void goodput_meter::formed(generation_id generation, clock::time_point now) {
  if (is_hold(activity_))
    enter(time_use::training, now);
  pauses_[generation].held += std::exchange(held_, 0);
  while (pauses_.size() > most_pauses) {
    const auto& oldest = pauses_.begin()->second;
    paused_before_ += std::max(0.0, oldest.longest - oldest.held);
    pauses_.erase(pauses_.begin());
  }
}

void goodput_meter::add(const metrics_batch& batch) {
  for (const auto& row : batch.pauses) {
    // The last step of a pause counts as a step.
    const auto seconds = static_cast<double>(row.pause_us) / 1e6 - mean_step();
    if (const auto found = pauses_.find(row.generation); found != pauses_.end())
      found->second.longest = std::max(found->second.longest, seconds);
  }
  for (const auto& row : batch.times)
    add(row);
}

void goodput_meter::add(const times_row& row) {
  checkpoint_[row.rank] += static_cast<double>(row.checkpoint_us) / 1e6;
  const auto computed_again = [this](std::uint64_t up_to) { return up_to > again_ ? up_to - again_ : 0; };
  if (again_ < counted_) {
    const auto up_to = std::min(row.last.value, counted_);
    sum_.lost.redone += part_of(row, again_, up_to);
    sum_.steps_redone += computed_again(up_to);
    again_ = std::max(again_, up_to);
  }
  if (row.last.value <= counted_)
    return;
  const auto first = std::max(row.first.value, counted_ + 1);
  const auto steps = row.last.value - first + 1;
  const auto seconds = part_of(row, counted_, row.last.value);
  // Rows of other ranks, which have been lost or come later, are of the steps between.
  const auto untold = first - counted_ - 1;
  sum_.productive_seconds += seconds * static_cast<double>(steps + untold) / static_cast<double>(steps);
  sum_.steps += steps + untold;
  counted_ = row.last.value;
  again_ = std::max(again_, counted_);
}

double goodput_meter::mean_step() const noexcept {
  return sum_.steps == 0 ? 0 : sum_.productive_seconds / static_cast<double>(sum_.steps);
}

run_goodput goodput_meter::so_far(clock::time_point now) const {
  auto result = sum_;
  auto spent = seconds_;
  spent[activity_] += seconds_of(now - since_);
  result.seconds = seconds_of(now - began_);
  auto& lost = result.lost;
  lost.start_up = spent[time_use::starting];
  lost.capacity = spent[time_use::awaiting_capacity];
  lost.restart = spent[time_use::restarting];
  lost.paused = spent[time_use::paused];
  lost.ending = spent[time_use::ending];
  lost.regroup = paused_before_;
  for (const auto& [generation, each] : pauses_)
    lost.regroup += std::max(0.0, each.longest - each.held);
  // Ranks wait for checkpoints side by side.
  for (const auto& [rank, seconds] : checkpoint_)
    lost.checkpoint = std::max(lost.checkpoint, seconds);
  result.productive_seconds = std::min(result.productive_seconds, result.seconds);
  auto told = result.productive_seconds;
  for_each_cause(lost, [&told](const char*, double seconds) { told += seconds; });
  lost.other = std::max(0.0, result.seconds - told);
  return result;
}

} // namespace troupe::actors

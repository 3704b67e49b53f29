#include <troupe/actors/decisions/exit_permits.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace troupe::actors {

bool exit_permits::begin(const generation_started& message) {
  if (message.run != run_)
    formed_ = {};
  run_ = message.run;
  if (message.world_size == 0 || message.generation < formed_)
    return false;
  holders_ = message.world_size;
  // A generation may be reported twice.
  if (message.generation == formed_)
    return false;
  formed_ = message.generation;
  permitted_.reset();
  waiting_.clear();
  return true;
}

expected<std::optional<exit_permits::grant>> exit_permits::ask(const exit_request& message) {
  if (message.run != run_)
    return fail(errc::stale_generation,
                fmt::format("worker {} requests its exit in a run that is not this driver's", message.worker));
  if (message.generation < formed_)
    return fail(errc::stale_generation,
                fmt::format("worker {} requests its exit in generation {}, and {} has been formed since",
                            message.worker, message.generation, formed_));
  if (permitted_ == message.worker)
    return grant{message.worker, {holders_ <= 1}};
  if (std::ranges::find(waiting_, message.worker) == waiting_.end())
    waiting_.push_back(message.worker);
  return next();
}

std::optional<exit_permits::grant> exit_permits::withdraw(const exit_withdrawn& message) {
  if (message.run != run_)
    return std::nullopt;
  if (permitted_ == message.worker)
    permitted_.reset();
  std::erase(waiting_, message.worker);
  return next();
}

std::optional<exit_permits::grant> exit_permits::gone(const worker_gone& message) {
  if (message.run != run_)
    return std::nullopt;
  holders_ = message.holders_left;
  if (permitted_ == message.worker)
    permitted_.reset();
  std::erase(waiting_, message.worker);
  return next();
}

std::optional<exit_permits::grant> exit_permits::next() {
  if (permitted_ || waiting_.empty())
    return std::nullopt;
  permitted_ = waiting_.front();
  waiting_.pop_front();
  return grant{*permitted_, {holders_ <= 1}};
}

} // namespace troupe::actors

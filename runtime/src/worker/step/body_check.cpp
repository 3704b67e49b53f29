#include "worker/step/body_check.hpp"

#include <bit>
#include <fmt/format.h>

namespace troupe::runtime {

namespace {

constexpr std::uint64_t most_steps_between_checks = 1024;

} // namespace

void body_check::begin(const tracked_state& state) {
  digests_ = is_due_ ? state.digests() : std::vector<std::uint64_t>{};
}

void body_check::check(step_id step, const tracked_state& state) const {
  if (digests_.empty())
    return;
  const auto now = state.digests();
  for (std::size_t part = 0; part < now.size(); ++part)
    if (part >= digests_.size() || now[part] != digests_[part])
      throw exception{errc::user_error,
                      fmt::format("the body of step {} wrote tracked state before all_reduce ({}): an interrupted try "
                                  "could not be repeated. Write contributions first, and apply after all_reduce",
                                  step, state.name_of_part(part))};
}

void body_check::end_step() noexcept {
  ++steps_;
  is_due_ = how_often_ == frequency::each_step || std::has_single_bit(steps_ + 1) ||
            (steps_ + 1) % most_steps_between_checks == 0;
}

} // namespace troupe::runtime

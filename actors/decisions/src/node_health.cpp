#include <troupe/actors/decisions/node_health.hpp>

#include <algorithm>
#include <utility>

namespace troupe::actors {

namespace {

using namespace std::chrono_literals;

/// This many deaths in a row may be accidents.
constexpr std::uint32_t accidents = 2;
constexpr auto first_pause = 5s;
constexpr std::chrono::seconds longest_pause = 5min;

/// Deaths further apart than this are unrelated. After a pause a worker must live this long.
constexpr auto calm = 30s;

} // namespace

void node_health::note_death(run_time now) noexcept {
  if (deaths_ > 0 && now - last_ > pause() + calm)
    deaths_ = 0;
  ++deaths_;
  last_ = now;
}

void node_health::note_cut(run_time now) noexcept {
  note_death(now);
  // A cut is no accident: the next worker would be cut off as well.
  deaths_ = std::max(deaths_, accidents + 1);
  is_cut_ = true;
}

bool node_health::end_cut(run_time now) noexcept {
  return is_cut_ && now - last_ >= pause() && std::exchange(is_cut_, false);
}

std::chrono::seconds node_health::pause() const noexcept {
  if (deaths_ <= accidents)
    return 0s;
  auto result = std::chrono::seconds{first_pause};
  for (auto i = accidents + 1; i < deaths_ && result < longest_pause; ++i)
    result *= 2;
  return std::min(result, longest_pause);
}

std::uint32_t node_health::most_more(run_time now) const noexcept {
  const auto since = now - last_;
  if (pause() == 0s || since > pause() + calm)
    return any_number;
  return since < pause() ? 0 : 1;
}

} // namespace troupe::actors

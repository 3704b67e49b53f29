#include <troupe/actors/decisions/failure_log.hpp>

#include <troupe/actors/decisions/plan_comparison.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::actors {

namespace {

/// How many attempts in a row may end without a new step, and how many of them by themselves.
constexpr std::uint32_t fruitless_limit = 10;
constexpr std::uint32_t own_limit = 3;

} // namespace

failure_record describe_failure(const worker_record& who, generation_id generation, error reason) {
  failure_record result;
  result.worker = who.place.worker;
  result.pid = who.pid;
  result.rank = who.place.rank;
  result.generation = generation;
  result.step.value = who.applied.value + 1;
  result.host = who.host;
  result.reason = std::move(reason);
  return result;
}

ended_by who_ended(const worker_ended& message, ended_by killed_by) {
  const auto status = message.exit_status;
  const auto is_killed = status == 128 + 9 || status == 128 + 15 || status == never_started;
  return is_killed && !message.out_of_memory ? killed_by : ended_by::itself;
}

failure_record describe_exit(const worker_record& who, const worker_standing& before, generation_id generation,
                             const worker_ended& message) {
  const auto during = std::holds_alternative<standing::started>(before) ? std::string{"before it had joined"}
                                                                        : fmt::format("after step {}", who.applied);
  const auto lines = message.last_lines.empty() ? std::string{} : "; its last lines:" + join_lines(message.last_lines);
  auto result = describe_failure(
      who, generation,
      {errc::worker_lost, fmt::format("{}{}{} ended {}: {}{}", name_of(who.place), who.host.empty() ? "" : " on ",
                                      who.host, during, message.description, lines)});
  result.last_lines = message.last_lines;
  return result;
}

void failure_log::add(failure_record what) {
  what.consequence = what.consequence || what.reason.code == errc::aborted;
  records_.push_back(std::move(what));
}

error failure_log::conclude(std::size_t first) {
  // A cut-off collective may be reported before the death behind it. If all of them were cut off, they follow from the
  // last loss that the run survived: a training function with a loop of its own does not survive one.
  auto begin = records_.begin() + static_cast<std::ptrdiff_t>(first);
  auto cause = std::ranges::find(begin, records_.end(), false, &failure_record::consequence);
  if (cause == records_.end() && begin != records_.begin())
    --begin;
  if (cause == records_.end())
    cause = begin;
  std::rotate(begin, cause, cause + 1);
  begin->consequence = false;
  return begin->reason;
}

std::optional<std::size_t> repeated_failures::note_own_failure(step_id step, std::size_t index) {
  auto [before, is_first] = failed_after_.emplace(step, index);
  return is_first ? std::nullopt : std::optional{before->second};
}

bool repeated_failures::note_hang(step_id furthest) {
  return std::exchange(hung_after_, furthest) == furthest;
}

bool repeated_failures::note_late_start() {
  return ++late_starts_ > 1;
}

bool repeated_failures::note_end_of_attempt(step_id furthest, ended_by cause) {
  const auto is_fruitful = furthest > furthest_;
  if (is_fruitful) {
    furthest_ = furthest;
    fruitless_attempts_ = 0;
    own_ends_.clear();
  } else {
    ++fruitless_attempts_;
  }
  if (cause == ended_by::itself)
    own_ends_.push_back(furthest);
  return !is_fruitful && (fruitless_attempts_ >= fruitless_limit || ends_by_itself());
}

bool repeated_failures::ends_by_itself() const noexcept {
  return own_ends_.size() >= own_limit;
}

std::string repeated_failures::describe_own_ends() const {
  const auto first = *std::ranges::min_element(own_ends_);
  const auto last = *std::ranges::max_element(own_ends_);
  return fmt::format("{} attempts ended in {}", own_ends_.size(),
                     first == last ? fmt::format("step {}", last.value + 1)
                                   : fmt::format("steps {} to {}", first.value + 1, last.value + 1));
}

} // namespace troupe::actors

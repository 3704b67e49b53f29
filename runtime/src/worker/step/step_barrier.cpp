#include "worker/step/step_barrier.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <string>
#include <vector>

namespace troupe::runtime {

void step_barrier::commit(step_id step) {
  first_ = first_.value_or(step);
  auto given_up = [step] { return exception{errc::aborted, fmt::format("the group was given up in step {}", step)}; };
  if (!members_.locked()->on_reduced(step))
    throw given_up();
  using actors::barrier_words;
  const auto mine = checkpoints_.barrier_words();
  auto words =
      actors::worker_protocol::words_for(step, commands_.highest(), digest_to_compare(step), mine.in_flight, mine.owed);
  value_or_throw(members_.communicator().barrier(words.values));
  switch (members_.locked()->on_barrier(step, words)) {
  case actors::barrier_outcome::committed:
    break;
  case actors::barrier_outcome::fenced:
    throw given_up();
  case actors::barrier_outcome::replicas_differ:
    report_different_replicas(step);
  case actors::barrier_outcome::steps_differ:
    throw exception{errc::mismatch,
                    fmt::format("the ranks are at different steps, {} and {}: an invariant of Troupe is "
                                "broken",
                                ~words.values[barrier_words::inverted_step], words.values[barrier_words::step])};
  }
  checkpoints_.on_barrier(members_.protocol().generation(),
                          {words.values[barrier_words::in_flight], words.values[barrier_words::owed] != 0});
  members_.note_commit(step);
}

std::optional<std::uint64_t> step_barrier::digest_to_compare(step_id step) const {
  switch (members_.protocol().comparison()) {
  case state_comparison::nothing:
    return std::nullopt;
  case state_comparison::whole:
    return state_.digest();
  case state_comparison::slice:
    return state_.digest_of_slice(step.value);
  }
  return std::nullopt;
}

void step_barrier::report_different_replicas(step_id step) {
  constexpr auto size = sizeof(std::uint64_t);
  auto mine = state_.digests();
  const auto parts = mine.size();
  mine.push_back(first_->value);
  const auto all = value_or_throw(members_.communicator().all_gather_bytes(std::as_bytes(std::span{mine})));
  auto differs = [&](std::size_t rank, std::size_t part) {
    const auto at = static_cast<std::ptrdiff_t>(part * size);
    const auto count = static_cast<std::ptrdiff_t>(size);
    return all[rank].size() != all[0].size() ||
           !std::equal(all[rank].begin() + at, all[rank].begin() + at + count, all[0].begin() + at);
  };
  auto text = std::string{};
  std::vector<std::uint64_t> begins;
  for (const auto& each : all)
    std::memcpy(&begins.emplace_back(), each.data() + each.size() - size, size);
  const auto earliest = std::ranges::min(begins);
  auto joined = std::string{};
  for (std::size_t rank = 0; rank < begins.size(); ++rank)
    if (begins[rank] > earliest)
      joined += fmt::format("{}rank {} joined before step {}", joined.empty() ? " (" : ", ", rank, begins[rank]);
  for (std::size_t part = 0; part < parts; ++part) {
    auto ranks = std::vector<std::size_t>{};
    for (std::size_t rank = 1; rank < all.size(); ++rank)
      if (differs(rank, part))
        ranks.push_back(rank);
    if (!ranks.empty())
      text +=
          fmt::format("{}{} on rank {}", text.empty() ? "" : "; ", state_.name_of_part(part), fmt::join(ranks, ", "));
  }
  throw exception{
      errc::mismatch,
      fmt::format("at the start of step {} the tracked state differs from rank 0's: {}{}. The training "
                  "function computes differently on different ranks: uninitialised memory, an untracked "
                  "random generator, memory that has moved since it was tracked (a vector that was assigned or "
                  "resized), or code that depends on the rank{}. With a ledger (run.keep_ledger), troupe "
                  "replay RUN --step {} --debug repeats the step before",
                  step, text, joined.empty() ? "" : joined + ")",
                  joined.empty() ? ""
                                 : "; or on what a worker that joins does not have, because it is not tracked: a "
                                   "schedule, a counter, a cache, a variable that the training function captured",
                  std::max<std::uint64_t>(step.value, 2) - 1)};
}

} // namespace troupe::runtime

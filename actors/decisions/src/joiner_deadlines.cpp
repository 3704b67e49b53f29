#include <troupe/actors/decisions/joiner_deadlines.hpp>

#include <fmt/format.h>

namespace troupe::actors {

namespace {

/// How long a joiner waits for others that were started, to be let in with them.
constexpr auto patience = std::chrono::milliseconds{500};

} // namespace

std::vector<overdue_joiner> find_overdue(const worker_table& workers, const failure_config& failure,
                                         std::chrono::milliseconds start_timeout, run_time now) {
  std::vector<overdue_joiner> result;
  for (const auto& [id, who] : workers) {
    const auto since = history_of(who.stands).since;
    if (who.is<standing::preparing>() && since != run_time{} && failure.hang == hang_mode::replace &&
        now - since > failure.replace_after)
      result.push_back({id,
                        "it did not come to its first loop in time",
                        {errc::timed_out,
                         fmt::format("{} did not come to its first loop in time: what does the training function do "
                                     "before it? (It may take failure.replace_after, or longer where it calls "
                                     "heartbeat())",
                                     name_of(who.place))}});
    else if (who.is<standing::started>() && now - since > start_timeout)
      result.push_back({id,
                        "it did not join in time",
                        {errc::timed_out,
                         fmt::format("{} did not join in time after the start of the process: see the worker's output, "
                                     "or raise run.start_timeout",
                                     name_of(who.place))}});
  }
  return result;
}

std::vector<worker_record*> find_due(worker_table& workers, run_time now) {
  auto others_come = false;
  auto one_waits_long = false;
  std::vector<worker_record*> result;
  for (auto& [id, who] : workers)
    if (const auto* joiner = who.as<standing::waiting>()) {
      one_waits_long = one_waits_long || now - joiner->history.since > patience;
      result.push_back(&who);
    } else {
      others_come = others_come || is_any<standing::started, standing::ready, standing::preparing>(who.stands);
    }
  if (others_come && !one_waits_long)
    result.clear();
  return result;
}

} // namespace troupe::actors

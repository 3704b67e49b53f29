#include <troupe/actors/decisions/overdue_joiners.hpp>

#include <fmt/format.h>

namespace troupe::actors {

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

} // namespace troupe::actors

#include "jobs/job_watch.hpp"

#include <algorithm>

namespace troupe::runtime {

void job_watch::hear(const std::string& from, std::chrono::milliseconds host_silent_for, time_point now) {
  heard_[from] = now;
  host_heard_ = std::max(host_heard_, now - host_silent_for);
}

std::chrono::milliseconds job_watch::host_silent_for(time_point now) const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(now - host_heard_);
}

bool job_watch::is_there(const std::string& keeper, time_point now) const {
  if (keeper == self_)
    return true;
  const auto heard = heard_.find(keeper);
  return heard != heard_.end() && now - heard->second <= how_.there_within;
}

bool job_watch::takes_over(const known_job& job, time_point now) const {
  if (job.end || job.host == self_)
    return false;
  const auto& keepers = job.what.keepers;
  const auto first =
      std::ranges::find_if(keepers, [&](const auto& each) { return each != job.host && is_there(each, now); });
  if (first == keepers.end() || *first != self_)
    return false;
  const auto has_witness = std::ranges::any_of(
      keepers, [&](const auto& each) { return each != self_ && each != job.host && is_there(each, now); });
  return host_silent_for(now) >= (has_witness ? how_.lost_after : how_.lost_alone);
}

std::string job_watch::successor(const known_job& job, time_point now) const {
  const auto& keepers = job.what.keepers;
  const auto first =
      std::ranges::find_if(keepers, [&](const auto& each) { return each != self_ && is_there(each, now); });
  return first == keepers.end() ? std::string{} : *first;
}

bool supersedes(const known_job& later, const known_job& earlier) {
  if (later.term != earlier.term)
    return later.term > earlier.term;
  if (later.end.has_value() != earlier.end.has_value())
    return later.end.has_value();
  if (later.is_removed != earlier.is_removed)
    return later.is_removed;
  if (later.host == earlier.host)
    return false;
  const auto& keepers = earlier.what.keepers;
  return std::ranges::find(keepers, later.host) < std::ranges::find(keepers, earlier.host);
}

} // namespace troupe::runtime

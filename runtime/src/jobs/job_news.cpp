#include "jobs/job_news.hpp"

#include "jobs/job_watch.hpp"

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;

/// How long keepers that do not answer are called after the end.
constexpr auto lifetime = 24h;

} // namespace

void job_news::begin() {
  told_.clear();
  behind_.clear();
}

void job_news::on_told(const std::string& keeper) {
  told_.insert(keeper);
  behind_.erase(keeper);
}

void job_news::on_word(const std::string& keeper, const known_job& its, const known_job& own) {
  if (supersedes(own, its))
    behind_.insert(keeper);
  else if (own.end)
    on_told(keeper);
}

bool job_news::is_for(const std::string& keeper, const known_job& own,
                      std::chrono::system_clock::time_point now) const {
  if (!own.end || behind_.contains(keeper))
    return true;
  const auto ended = std::chrono::system_clock::time_point{std::chrono::milliseconds{own.end->at}};
  return !told_.contains(keeper) && now < ended + lifetime;
}

} // namespace troupe::runtime

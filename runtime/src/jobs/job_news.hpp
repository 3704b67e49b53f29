#pragma once

#include <troupe/runtime/jobs.hpp>

#include <chrono>
#include <set>
#include <string>

namespace troupe::runtime {

/// Which keepers have to hear what a node knows of a job: all as long as it runs, afterwards those that were not told
/// within a day of its end, and those that say something older. Pure.
class job_news {
 public:
  /// Something else is known of the job from now on.
  void begin();

  /// The keeper was told what is known.
  void on_told(const std::string& keeper);

  /// The keeper has said `its` of the job, of which `own` is known.
  void on_word(const std::string& keeper, const known_job& its, const known_job& own);

  [[nodiscard]] bool is_for(const std::string& keeper, const known_job& own,
                            std::chrono::system_clock::time_point now) const;

 private:
  std::set<std::string> told_;
  /// Those that have said something older.
  std::set<std::string> behind_;
};

} // namespace troupe::runtime

#include "jobs/job_programs.hpp"

#include <fmt/format.h>

#include <system_error>

namespace troupe::runtime {

namespace fs = std::filesystem;

namespace {

fs::path place_in(const fs::path& directory) {
  return directory / "program";
}

bool is_at(const fs::path& place, const sent_file& file) {
  const auto there = program_file::open((place / file.name).string());
  return there && there->identity().build_id == file.build_id;
}

} // namespace

expected<program_file> job_programs::find_own(const job_record& job) const {
  const auto& named = job.arguments.front();
  return job.files.empty() ? finder_->find_any_build(named, job.environment)
                           : finder_->find(named, job.files.front().build_id, job.environment);
}

expected<void> job_programs::check(const job_record& job) const {
  TROUPE_TRY(const auto program, find_own(job));
  const auto is_sent = !job.files.empty() && finder_->cache() && finder_->cache()->find(job.files.front().build_id);
  for (const auto& each : job.files)
    if (is_sent && !finder_->cache()->find(each.build_id))
      return fail(errc::not_found,
                  fmt::format("{} of job {} is not here any more: submit it again", each.name, job.name));
  return {};
}

expected<void> job_programs::keep(const job_record& job, const fs::path& directory) const {
  const auto place = place_in(directory);
  for (const auto& each : job.files) {
    if (is_at(place, each))
      continue;
    const auto kept = finder_->cache()
                          ? finder_->cache()->link(each.build_id, each.name, place)
                          : fail(errc::not_found, fmt::format("this node has no {}, and takes no programs", each.name));
    if (!kept)
      return find_own(job) ? expected<void>{} : kept;
  }
  return {};
}

expected<program_file> job_programs::open(const job_record& job, const fs::path& directory) const {
  const auto kept = keep(job, directory);
  if (kept && !job.files.empty() && is_at(place_in(directory), job.files.front()))
    return program_finder::check(program_file::open((place_in(directory) / job.files.front().name).string()),
                                 job.environment);
  return find_own(job);
}

void job_programs::drop(const fs::path& directory) {
  auto ignored = std::error_code{};
  fs::remove_all(place_in(directory), ignored);
}

} // namespace troupe::runtime

#include "jobs/job_files.hpp"

#include <troupe/collectives/unique_fd.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fcntl.h>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace troupe::runtime {

namespace fs = std::filesystem;

namespace {

constexpr std::array<std::string_view, 2> of_job{"driver.log.1", "driver.log"};
constexpr std::array<std::string_view, 5> of_run{"run.json", "events.jsonl", "metrics.jsonl", "times.jsonl",
                                                 "result.json"};

void add(std::vector<job_file>& to, const fs::path& file, std::string name) {
  struct stat status {};
  if (::stat(file.c_str(), &status) == 0 && S_ISREG(status.st_mode))
    to.push_back({std::move(name), static_cast<std::uint64_t>(status.st_size), status.st_ino});
}

bool is_log(std::string_view name) {
  return name == "ranks.jsonl" || (name.starts_with("worker-") && (name.ends_with(".log") || name.ends_with(".log.1")));
}

} // namespace

std::vector<job_file> list_job_files(const fs::path& job, const fs::path& run) {
  std::vector<job_file> result;
  for (const auto name : of_job)
    add(result, job / name, std::string{name});
  if (run.empty())
    return result;
  auto code = std::error_code{};
  for (auto each = fs::directory_iterator{run / "logs", code}; !code && each != fs::directory_iterator{};
       each.increment(code))
    if (const auto name = each->path().filename().string(); is_log(name))
      add(result, each->path(), "logs/" + name);
  // The result comes last: who has it has the rest.
  for (const auto name : of_run)
    add(result, run / name, std::string{name});
  return result;
}

expected<std::string> read_job_file(const fs::path& job, const fs::path& run, const std::string& path,
                                    std::uint64_t offset, std::size_t limit) {
  const auto is_listed = std::ranges::any_of(list_job_files(job, run), [&](const auto& x) { return x.path == path; });
  if (!is_listed)
    return fail(errc::not_found, fmt::format("the run has no file {}", path));
  const auto is_of_job = std::ranges::find(of_job, path) != of_job.end();
  const auto file = (is_of_job ? job : run) / path;
  const collectives::unique_fd opened{::open(file.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!opened)
    return fail(system_error(file.string()));
  auto result = std::string(std::min(limit, most_file_bytes), '\0');
  const auto got = ::pread(opened.get(), result.data(), result.size(), static_cast<off_t>(offset));
  if (got < 0)
    return fail(system_error(file.string()));
  result.resize(static_cast<std::size_t>(got));
  return result;
}

} // namespace troupe::runtime

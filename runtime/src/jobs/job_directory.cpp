#include "jobs/job_directory.hpp"

#include "jobs/job_messages.hpp"

#include <troupe/serialization/files/durable_file.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <fcntl.h>
#include <fstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <system_error>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace fs = std::filesystem;

namespace {

constexpr auto record_name = "job.json";
/// In no job's name.
constexpr auto aside_mark = '~';

/// Those that can be read.
std::vector<fs::path> entries_of(const fs::path& directory) {
  std::vector<fs::path> result;
  auto code = std::error_code{};
  for (auto each = fs::directory_iterator{directory, code}; !code && each != fs::directory_iterator{};
       each.increment(code))
    result.push_back(each->path());
  return result;
}

} // namespace

expected<job_directory> job_directory::open(const fs::path& path) {
  TROUPE_TRY(serialization::create_directories_durably(path));
  // Arguments and variables may be secrets.
  if (::chmod(path.c_str(), S_IRWXU) != 0)
    return fail(system_error("cannot keep others from " + path.string()));
  collectives::unique_fd lock{::open((path / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
  if (!lock)
    return fail(system_error("cannot write to " + path.string()));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    return fail(errc::busy, fmt::format("{} is another caf-node's: give each its own --state", path.string()));
  // Drivers have working directories of their own, and are told where to list their runs.
  auto code = std::error_code{};
  auto absolute = fs::absolute(path, code);
  if (code)
    return fail(errc::io_error, fmt::format("cannot tell where {} is: {}", path.string(), code.message()));
  return job_directory{std::move(absolute), std::move(lock)};
}

std::vector<known_job> job_directory::load(std::vector<std::string>& problems) const {
  std::vector<known_job> result;
  auto code = std::error_code{};
  for (auto each = fs::directory_iterator{path_, code}; !code && each != fs::directory_iterator{};
       each.increment(code)) {
    const auto file = each->path() / record_name;
    auto in = std::ifstream{file};
    if (!in)
      continue;
    auto job = parse_job(nlohmann::json::parse(in, nullptr, false));
    if (job && each->path().filename() == job->what.name)
      result.push_back(std::move(*job));
    else
      problems.push_back(fmt::format("{} is damaged, and its job is left alone: {}", file.string(),
                                     job ? "it names another job" : job.error().message));
  }
  if (code)
    problems.push_back(fmt::format("cannot read {}: {}", path_.string(), code.message()));
  return result;
}

expected<void> job_directory::save(const known_job& job) const {
  TROUPE_TRY(serialization::create_directories_durably(of(job.what.name)));
  return serialization::write_file_durably(of(job.what.name) / record_name,
                                           describe(job).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
                                               "\n");
}

expected<void> job_directory::set_aside(const std::string& job) const {
  auto entries = entries_of(of(job));
  std::erase_if(entries, [](const fs::path& x) { return x.filename() == record_name; });
  if (entries.empty())
    return {};
  auto code = std::error_code{};
  auto aside = fs::path{};
  for (auto number = 0;; ++number) {
    aside = path_ / fmt::format("{}{}{}", job, aside_mark, number);
    if (fs::create_directory(aside, code))
      break;
    if (code)
      return fail(errc::io_error, fmt::format("cannot make {}: {}", aside.string(), code.message()));
  }
  for (const auto& each : entries) {
    fs::rename(each, aside / each.filename(), code);
    if (code)
      return fail(errc::io_error, fmt::format("cannot move {}: {}", each.string(), code.message()));
  }
  return {};
}

void job_directory::forget(const std::string& job) const {
  auto code = std::error_code{};
  fs::remove_all(of(job), code);
}

std::vector<std::string> job_directory::sweep() const {
  std::vector<std::string> problems;
  for (const auto& each : entries_of(path_)) {
    if (each.filename().native().find(aside_mark) == std::string::npos)
      continue;
    auto code = std::error_code{};
    fs::remove_all(each, code);
    if (code)
      problems.push_back(fmt::format("cannot remove {}: {}", each.string(), code.message()));
  }
  return problems;
}

std::vector<fs::path> job_directory::runs_of(const std::string& job) const {
  std::vector<fs::path> result;
  auto in = std::ifstream{list_of_runs(job)};
  for (std::string line; std::getline(in, line);) {
    const auto row = nlohmann::json::parse(line, nullptr, false);
    if (!row.is_object() || !row.contains("run") || !row["run"].is_string())
      continue;
    auto run = fs::path{row["run"].get<std::string>()};
    std::erase(result, run);
    result.push_back(std::move(run));
  }
  return result;
}

void line_log::open() {
  file_ = collectives::unique_fd{::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)};
  struct stat status {};
  size_ = file_ && ::fstat(file_.get(), &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
}

void line_log::add(std::string_view line) {
  if (!file_)
    open();
  if (size_ > 0 && size_ + line.size() >= most_bytes) {
    std::ignore = ::rename(path_.c_str(), (path_.string() + ".1").c_str());
    open();
  }
  auto end = '\n';
  const std::array<iovec, 2> parts{{{const_cast<char*>(line.data()), line.size()}, {&end, 1}}};
  if (const auto written = ::writev(file_.get(), parts.data(), parts.size()); written > 0)
    size_ += static_cast<std::size_t>(written);
}

} // namespace troupe::runtime

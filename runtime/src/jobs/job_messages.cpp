#include "jobs/job_messages.hpp"

#include <troupe/config.hpp>
#include <troupe/mirror_place.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <set>
#include <string>
#include <utility>

namespace troupe::runtime {

using nlohmann::json;

namespace {

/// In all, so that a record stays a small file and fits into a message.
constexpr std::size_t most_text_bytes = std::size_t{128} << 10;
constexpr std::size_t most_keepers = 3;

std::size_t size_of(const job_record& job) {
  auto result = job.directory.native().size() + job.mirror.size() + job.submitter.size();
  for (const auto& each : job.arguments)
    result += each.size() + 1;
  for (const auto& [name, value] : job.environment)
    result += name.size() + value.size() + 2;
  for (const auto& each : job.keepers)
    result += each.size();
  for (const auto& each : job.files)
    result += each.name.size() + each.build_id.size();
  return result;
}

bool has_zero(const job_record& job) {
  const auto contains_zero = [](const std::string& text) { return text.find('\0') != std::string::npos; };
  return std::ranges::any_of(job.arguments, contains_zero) ||
         std::ranges::any_of(job.environment,
                             [&](const auto& x) {
                               return contains_zero(x.first) || contains_zero(x.second) || x.first.empty() ||
                                      x.first.find('=') != std::string::npos;
                             }) ||
         contains_zero(job.directory.native());
}

json describe(const job_end& end) {
  return {{"outcome", to_string(end.outcome)}, {"exit_code", end.exit_code}, {"reason", end.reason}, {"at", end.at}};
}

job_outcome outcome_of(const std::string& word) {
  return word == "completed" ? job_outcome::completed : word == "stopped" ? job_outcome::stopped : job_outcome::failed;
}

job_end end_in(const json& text) {
  return {outcome_of(text.at("outcome").get<std::string>()), text.at("exit_code").get<int>(),
          text.at("reason").get<std::string>(), text.at("at").get<std::uint64_t>()};
}

std::vector<sent_file> files_in(const json& text) {
  std::vector<sent_file> result;
  for (const auto& each : text.value("files", json::array()))
    result.push_back({each.at("name").get<std::string>(), each.at("build_id").get<std::string>()});
  return result;
}

known_job job_in(const json& text) {
  known_job result;
  auto& what = result.what;
  what.name = text.at("name").get<std::string>();
  what.arguments = text.at("arguments").get<std::vector<std::string>>();
  what.files = files_in(text);
  what.environment = text.value("environment", std::map<std::string, std::string>{});
  what.directory = text.value("directory", std::string{});
  what.mirror = text.value("mirror", std::string{});
  what.is_shared = text.value("shared", false);
  what.time_limit = std::chrono::milliseconds{text.value("time_limit_ms", std::uint64_t{0})};
  what.wait_for_resources = std::chrono::milliseconds{text.value("wait_ms", std::uint64_t{0})};
  what.keepers = text.value("keepers", std::vector<std::string>{});
  what.submitter = text.value("submitter", std::string{});
  what.submitted = text.value("submitted", std::uint64_t{0});
  result.term = text.value("term", std::uint64_t{1});
  result.host = text.value("host", std::string{});
  if (const auto end = text.find("end"); end != text.end() && end->is_object())
    result.end = end_in(*end);
  result.is_removed = result.end && text.value("removed", false);
  return result;
}

} // namespace

std::string_view to_string(job_outcome outcome) noexcept {
  switch (outcome) {
  case job_outcome::completed:
    return "completed";
  case job_outcome::stopped:
    return "stopped";
  case job_outcome::failed:
    return "failed";
  }
  return "failed";
}

bool can_move(const job_record& job) noexcept {
  return !job.mirror.empty() || job.is_shared;
}

expected<void> validate(const job_record& job) {
  if (job.name.empty())
    return fail(errc::invalid_argument, "a job needs a name");
  trainer_config named;
  named.run.name = job.name;
  if (const auto valid = validate(named); !valid)
    return fail(errc::invalid_argument, fmt::format("'{}' cannot name a job: use letters, digits, '.', '_' and '-', at "
                                                    "most 128, not starting with '.', and not 'latest'",
                                                    job.name));
  if (job.arguments.empty() || job.arguments.front().empty())
    return fail(errc::invalid_argument, "a job needs a program");
  if (size_of(job) > most_text_bytes)
    return fail(errc::invalid_argument, fmt::format("the arguments and variables of job {} have {} bytes: {} at most",
                                                    job.name, size_of(job), most_text_bytes));
  if (has_zero(job))
    return fail(errc::invalid_argument,
                fmt::format("an argument or a variable of job {} contains a zero byte, or has no name", job.name));
  std::set<std::string> names;
  for (const auto& each : job.files) {
    if (!names.insert(each.name).second)
      return fail(errc::invalid_argument,
                  fmt::format("job {} has two files with the name {}, and they lie in one directory: rename one",
                              job.name, each.name));
    if (!is_plain_path(each.name) || each.name.find('/') != std::string::npos || each.build_id.empty())
      return fail(errc::invalid_argument, fmt::format("'{}' cannot name a file of job {}", each.name, job.name));
  }
  if (job.keepers.size() > most_keepers)
    return fail(errc::invalid_argument, fmt::format("job {} has {} nodes that may host it: {} at most", job.name,
                                                    job.keepers.size(), most_keepers));
  if (job.is_shared && job.directory.empty())
    return fail(errc::invalid_argument,
                fmt::format("job {} has a directory that nodes share (--shared), and does not name it (--directory)",
                            job.name));
  if (std::min(job.time_limit, job.wait_for_resources) < std::chrono::milliseconds{0})
    return fail(errc::invalid_argument, fmt::format("a time of job {} is negative", job.name));
  return {};
}

json describe(const known_job& job) {
  const auto& what = job.what;
  json result{{"name", what.name},
              {"arguments", what.arguments},
              {"environment", what.environment},
              {"directory", what.directory.string()},
              {"mirror", what.mirror},
              {"shared", what.is_shared},
              {"time_limit_ms", what.time_limit.count()},
              {"wait_ms", what.wait_for_resources.count()},
              {"keepers", what.keepers},
              {"submitter", what.submitter},
              {"submitted", what.submitted},
              {"term", job.term},
              {"host", job.host}};
  for (const auto& each : what.files)
    result["files"].push_back({{"name", each.name}, {"build_id", each.build_id}});
  if (job.end)
    result["end"] = describe(*job.end);
  if (job.is_removed)
    result["removed"] = true;
  return result;
}

expected<known_job> parse_job(const json& text) {
  try {
    auto result = job_in(text);
    TROUPE_TRY(validate(result.what));
    return result;
  } catch (const std::exception& x) {
    return fail(errc::invalid_argument, fmt::format("not a job: {}", x.what()));
  }
}

} // namespace troupe::runtime

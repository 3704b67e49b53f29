#include "node/node_page.hpp"

#include "net/members/member_messages.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <system_error>
#include <utility>

namespace troupe::runtime {

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using nlohmann::json;
using ordered = nlohmann::ordered_json;

constexpr auto fresh_for = 1s;

ordered describe_job(const known_job& job) {
  auto result = ordered{{"name", job.what.name},
                        {"state", job.end ? to_string(job.end->outcome) : "running"},
                        {"node", job.host},
                        {"program", job.what.arguments.front()},
                        {"submitter", job.what.submitter},
                        {"submitted", job.what.submitted}};
  if (job.end && !job.end->reason.empty())
    result["reason"] = job.end->reason;
  return result;
}

} // namespace

ordered node_page::cluster() {
  const auto lock = std::lock_guard{mutex_};
  if (clock::now() - asked_ < fresh_for)
    return last_;
  last_ = describe_cluster();
  asked_ = clock::now();
  return last_;
}

ordered node_page::describe_cluster() {
  auto result = ordered{{"node", address_}, {"nodes", ordered::array()}, {"jobs", ordered::array()}};
  const auto known = members_.answer({0, "this node's page", certificate_role::both, {}}, json{{"ask", "members"}});
  auto members = expected<std::vector<listed_member>>{};
  const auto entries = known.value("entries", std::vector<std::string>{});
  if (!entries.empty() && how_)
    members = list_members(entries, *how_);
  if (entries.empty() || !how_ || !members) {
    members = std::vector<listed_member>{};
    for (const auto& each : known.value("members", json::array()))
      if (auto member = parse_listed(each))
        members->push_back(std::move(*member));
    if (!entries.empty())
      result["note"] =
          fmt::format("Only this node is shown: the entry node{} {} {} the others.", entries.size() > 1 ? "s" : "",
                      fmt::join(entries, ", "), entries.size() > 1 ? "know" : "knows");
  }
  for (const auto& each : *members)
    result["nodes"].push_back(to_json(each));
  auto jobs = jobs_.jobs();
  std::erase_if(jobs, [](const known_job& job) { return job.is_removed; });
  std::ranges::stable_sort(jobs, std::ranges::greater{}, [](const known_job& job) { return job.what.submitted; });
  for (const auto& each : jobs)
    result["jobs"].push_back(describe_job(each));
  return result;
}

std::vector<fs::path> node_page::runs() const {
  std::vector<std::pair<fs::file_time_type, fs::path>> found;
  for (const auto& job : jobs_.jobs())
    if (const auto hosted = jobs_.find(job.what.name))
      for (const auto& run : hosted->runs) {
        auto code = std::error_code{};
        // Its identity is written once, when it begins.
        if (const auto began = fs::last_write_time(run / "run.json", code); !code)
          found.emplace_back(began, run);
      }
  std::ranges::sort(found, std::ranges::greater{});
  std::vector<fs::path> result;
  for (auto& [began, run] : found)
    result.push_back(std::move(run));
  return result;
}

} // namespace troupe::runtime

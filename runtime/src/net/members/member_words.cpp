#include <troupe/messages/node.hpp>
#include <troupe/runtime/members.hpp>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <utility>

namespace troupe::runtime {

std::string_view state_of(const listed_member& member) {
  if (member.is_silent)
    return "silent";
  if (member.what.protocol != protocol_version)
    return "other version";
  switch (member.what.phase) {
  case member_phase::available:
    return "available";
  case member_phase::drained:
    return workers_of(member.what) > 0 ? "draining" : "drained";
  case member_phase::leaving:
    return "leaving";
  }
  return "available";
}

std::string day_of(std::int64_t seconds) {
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

nlohmann::ordered_json to_json(const listed_member& member) {
  const auto& what = member.what;
  auto runs = nlohmann::ordered_json::array();
  for (const auto& run : what.runs)
    runs.push_back({{"run", run.run}, {"name", run.name}, {"workers", run.workers}});
  return {{"address", what.address},
          {"host", what.host},
          {"pid", what.pid},
          {"state", state_of(member)},
          {"silent_seconds", static_cast<double>(member.silent_for.count()) / 1000},
          {"cpus", what.offered.cpus},
          {"gpus", what.offered.gpus},
          {"free_gpus", what.free.gpus},
          {"memory_bytes", what.offered.memory_bytes},
          {"free_memory_bytes", what.free.memory_bytes},
          {"labels", what.labels},
          {"workers", workers_of(what)},
          {"runs", std::move(runs)},
          {"version", what.version},
          {"protocol", what.protocol},
          {"certificate_expires", what.certificate_expires ? nlohmann::ordered_json(day_of(*what.certificate_expires))
                                                           : nlohmann::ordered_json{}}};
}

} // namespace troupe::runtime

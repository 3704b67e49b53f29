#include "checkpoint/mirror.hpp"

#include "checkpoint/text.hpp"

#include <troupe/mirror_place.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/durable_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace troupe::tool {

int list_mirror(const list_arguments& given, const std::string& rclone) {
  const auto wanted = parse_mirrored_run(given.path.string());
  auto mirror = runtime::open_mirror(wanted.place, rclone);
  if (!mirror)
    return complain(mirror.error());
  const auto content = (*mirror)->list({});
  if (!content)
    return complain(content.error());
  auto document = json::array();
  auto rows = std::vector<std::vector<std::string>>{{"checkpoint", "step", "state"}};
  const auto add = [&](step_id step, const char* state) {
    document.push_back({{"step", step.value}, {"state", state}});
    rows.push_back({serialization::checkpoint_name(step), std::to_string(step.value), state});
  };
  for (const auto step : content->complete)
    add(step, "complete");
  for (const auto step : content->incomplete)
    add(step, "incomplete");
  if (given.output == output_format::json)
    print_json({{"place", (*mirror)->place()}, {"checkpoints", document}});
  else if (document.empty())
    std::printf("no checkpoints at %s\n", (*mirror)->place().c_str());
  else
    print_table(rows);
  return exit_good;
}

int fetch(const fetch_arguments& given) {
  auto wanted = parse_mirrored_run(given.from);
  if (given.step)
    wanted.step = step_id{*given.step};
  auto mirror = runtime::open_mirror(wanted.place, given.rclone);
  if (!mirror)
    return complain(mirror.error());
  const auto content = (*mirror)->list({});
  if (!content)
    return complain(content.error());
  if (content->complete.empty())
    return complain({errc::not_found, fmt::format("there is no checkpoint at {}", (*mirror)->place())});
  const auto step = wanted.step.value_or(content->complete.back());
  if (std::ranges::find(content->complete, step) == content->complete.end())
    return complain({errc::not_found, fmt::format("there is no checkpoint of step {} at {}: troupe checkpoint ls lists "
                                                  "them",
                                                  step, (*mirror)->place())});
  if (auto made = serialization::create_directories_durably(given.to); !made)
    return complain(made.error());
  if (auto fetched = (*mirror)->fetch(step, given.to, {}); !fetched)
    return complain(fetched.error());
  const auto path = given.to / serialization::checkpoint_name(step);
  if (given.output == output_format::json)
    print_json({{"checkpoint", path.string()}, {"step", step.value}, {"place", (*mirror)->place()}});
  else
    std::printf("%s: fetched from %s, and every byte verified\n", path.c_str(), (*mirror)->place().c_str());
  return exit_good;
}

} // namespace troupe::tool

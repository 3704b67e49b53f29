#include "process/oom_counters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string_view>

namespace troupe::runtime {

namespace {

std::optional<std::uint64_t> read_counter(const std::string& path) {
  constexpr std::string_view key = "oom_kill ";
  std::ifstream file{path};
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key))
      return std::strtoull(line.c_str() + key.size(), nullptr, 10);
  return std::nullopt;
}

/// The files that may hold a counter for one line of /proc/self/cgroup, "ID:CONTROLLERS:GROUP".
std::vector<std::string> files_of_group(const std::string& line) {
  auto first = line.find(':');
  auto second = line.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos)
    return {};
  auto controllers = line.substr(first, second - first) + ":";
  std::ranges::replace(controllers, ',', ':');
  auto group = line.substr(second + 1);
  if (controllers == "::") // version 2
    return {"/sys/fs/cgroup" + group + "/memory.events", "/sys/fs/cgroup/memory.events"};
  if (controllers.find(":memory:") != std::string::npos)
    return {"/sys/fs/cgroup/memory" + group + "/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control"};
  return {};
}

} // namespace

oom_counters::oom_counters() {
  std::ifstream groups{"/proc/self/cgroup"};
  for (std::string line; std::getline(groups, line);)
    for (auto& path : files_of_group(line))
      counters_.push_back({std::move(path), "control group"});
  counters_.push_back({"/proc/vmstat", "machine"});
  std::erase_if(counters_, [](const counter& x) { return !read_counter(x.path); });
}

std::vector<std::uint64_t> oom_counters::read() const {
  std::vector<std::uint64_t> result;
  for (const auto& x : counters_)
    result.push_back(read_counter(x.path).value_or(0));
  return result;
}

std::string oom_counters::evidence(const std::vector<std::uint64_t>& before) const {
  for (std::size_t i = 0; i < counters_.size(); ++i) {
    const auto& [path, scope] = counters_[i];
    auto now = read_counter(path).value_or(before[i]);
    if (now > before[i])
      return fmt::format("probably out of memory: since this process started, the kernel's out-of-memory killer ended "
                         "{} processes of the {} (oom_kill in {}); use fewer workers on this host, or give it more "
                         "memory",
                         now - before[i], scope, path);
  }
  return {};
}

} // namespace troupe::runtime

#include "commands.hpp"
#include "locate.hpp"
#include "text.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace troupe::tool {

namespace {

std::uint64_t part_bytes(const serialization::manifest& content) {
  return std::accumulate(content.parts.begin(), content.parts.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const serialization::part_file& part) { return sum + part.size_bytes; });
}

/// The first few metrics, as many as fit.
std::string some_metrics(const std::map<std::string, double>& metrics) {
  constexpr std::size_t most = 4;
  auto result = std::string{};
  auto shown = std::size_t{0};
  for (const auto& [name, value] : metrics) {
    if (shown++ == most)
      return result + " ...";
    if (!result.empty())
      result += ' ';
    result += printable(name) + '=' + short_number_text(value);
  }
  return result;
}

/// A checkpoint of a newer version is unreadable, not damaged.
const char* state_of(const expected<serialization::checkpoint>& opened) {
  return opened ? "good" : opened.error().code == errc::damaged ? "damaged" : "unreadable";
}

json described(const std::filesystem::path& path, const expected<serialization::checkpoint>& opened) {
  if (!opened)
    return {{"path", path.string()}, {"state", state_of(opened)}, {"why", opened.error().message}};
  const auto& content = opened->content();
  return {{"path", path.string()},
          {"state", "good"},
          {"step", content.step.value},
          {"created_unix_ms", content.created.time_since_epoch().count()},
          {"bytes", part_bytes(content)},
          {"world_size", content.world_size},
          {"generation", content.generation.value},
          {"metrics", metrics_json(content.metrics)}};
}

} // namespace

int list(const list_arguments& given) {
  auto where = locate(given.path);
  if (!where)
    return complain(where.error());
  auto rows = std::vector<std::vector<std::string>>{
      {"checkpoint", "step", "created (UTC)", "size", "workers", "generation", "metrics"}};
  auto damages = std::vector<error>{};
  auto document = json::array();
  for (const auto& path : where->checkpoints) {
    auto opened = serialization::checkpoint::open(path);
    // A running run may have removed it meanwhile.
    if (!opened && opened.error().code == errc::not_found)
      continue;
    document.push_back(described(path, opened));
    auto name = path.filename().string();
    if (!opened) {
      rows.push_back({printable(name), "-", "-", "-", "-", "-", state_of(opened)});
      damages.push_back({opened.error().code, fmt::format("{}: {}", name, opened.error().message)});
      continue;
    }
    const auto& content = opened->content();
    rows.push_back({printable(name), std::to_string(content.step.value), time_text(content.created),
                    bytes_text(part_bytes(content)), std::to_string(content.world_size),
                    std::to_string(content.generation.value), some_metrics(content.metrics)});
  }
  if (given.output == output_format::json)
    print_json({{"checkpoints", document}});
  else if (where->checkpoints.empty())
    std::printf("no checkpoints in %s\n", where->directory.c_str());
  else
    print_table(rows);
  auto code = exit_good;
  for (const auto& damage : damages)
    code = std::max(code, complain(damage));
  return code;
}

} // namespace troupe::tool

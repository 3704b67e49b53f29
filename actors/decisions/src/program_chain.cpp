#include <troupe/actors/decisions/program_chain.hpp>

#include <troupe/serialization/files/digest.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace troupe::actors {

namespace {

using nlohmann::json;

/// Whether an item of the fingerprint belongs to the host or to the process's modes. Frameworks add items about
/// libraries.
bool is_of_host(std::string_view key) {
  constexpr std::array whole{"architecture", "device", "device.capability", "probe.arithmetic", "probe.reciprocals"};
  constexpr std::array prefixes{"cpu.", "float.", "threads.", "env."};
  return std::ranges::find(whole, key) != whole.end() ||
         std::ranges::any_of(prefixes, [key](const char* prefix) { return key.starts_with(prefix); });
}

std::string select(const std::string& numerics, bool of_host) {
  auto result = json::object();
  if (const auto all = json::parse(numerics, nullptr, false); all.is_object())
    for (const auto& [key, value] : all.items())
      if (is_of_host(key) == of_host)
        result[key] = value;
  return result.dump();
}

bool is_same_program(const program_span& a, const program_span& b) {
  return a.build_id == b.build_id && a.configuration_digest == b.configuration_digest && a.libraries == b.libraries;
}

std::vector<program_span> parse_programs(const std::string& text) {
  std::vector<program_span> result;
  const auto list = json::parse(text, nullptr, false);
  if (!list.is_array())
    return result;
  for (const auto& each : list) {
    if (!each.is_object())
      continue;
    program_span span;
    span.first_step.value = each.value("first_step", std::uint64_t{0});
    span.last_step.value = each.value("last_step", std::uint64_t{0});
    span.build_id = each.value("build_id", "");
    span.configuration_digest = each.value("configuration_digest", "");
    span.libraries = each.value("libraries", json::object()).dump();
    result.push_back(std::move(span));
  }
  return result;
}

} // namespace

std::string libraries_in(const std::string& numerics) {
  return select(numerics, false);
}

std::string without_libraries(const std::string& numerics) {
  return select(numerics, true);
}

program_span describe_program(const std::string& build_id, const std::string& configuration,
                              const std::string& numerics) {
  program_span result;
  result.build_id = build_id;
  result.configuration_digest = serialization::sha256_hex(serialization::bytes_of(configuration));
  result.libraries = libraries_in(numerics);
  return result;
}

std::vector<program_span> programs_of(const serialization::manifest& content) {
  auto own = describe_program(content.program_build_id, content.configuration_json, content.numerics_fingerprint_json);
  auto result = parse_programs(content.earlier_programs_json);
  own.first_step.value = result.empty() ? 1 : result.back().last_step.value + 1;
  own.last_step = content.step;
  result.push_back(std::move(own));
  return result;
}

std::vector<program_span> go_on_with(std::vector<program_span> before, program_span now, step_id step) {
  now.first_step.value = step.value + 1;
  now.last_step = step;
  if (!before.empty() && is_same_program(before.back(), now)) {
    now.first_step = before.back().first_step;
    before.pop_back();
  }
  before.push_back(std::move(now));
  return before;
}

std::string earlier_programs_json(const std::vector<program_span>& programs) {
  if (programs.size() < 2)
    return {};
  auto result = json::array();
  for (std::size_t i = 0; i + 1 < programs.size(); ++i)
    result.push_back({{"first_step", programs[i].first_step.value},
                      {"last_step", programs[i].last_step.value},
                      {"build_id", programs[i].build_id},
                      {"configuration_digest", programs[i].configuration_digest},
                      {"libraries", json::parse(programs[i].libraries, nullptr, false)}});
  return result.dump();
}

} // namespace troupe::actors

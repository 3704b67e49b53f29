#include "submit/embedded.hpp"
#include "submit/submission.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <string_view>

namespace troupe::tool {

namespace {

/// A string of JSON is one of YAML, which takes no DEL.
std::string yaml_string(const std::string& text) {
  auto result = nlohmann::json(text).dump();
  for (auto at = result.find('\x7f'); at != std::string::npos; at = result.find('\x7f', at))
    result.replace(at, 1, "\\u007f");
  return result;
}

/// Kubernetes replaces $(NAME) and $$ in commands and variables.
std::string literal(std::string text) {
  for (auto at = text.find('$'); at != std::string::npos; at = text.find('$', at + 2))
    text.insert(at, "$");
  return yaml_string(text);
}

std::string command_of(const submission& job) {
  auto result = literal(job.program);
  for (const auto& each : job.arguments)
    result += ", " + literal(each);
  return result;
}

std::string environment_of(const submission& job) {
  constexpr auto line = "            - {{name: {}, value: {}}}";
  auto result = fmt::format(line, runtime::job_variable, literal(to_text(job.job)));
  for (const auto& [name, value] : job.environment)
    result += "\n" + fmt::format(line, yaml_string(name), literal(value));
  return result;
}

} // namespace

std::string kubernetes_manifest(const submission& job, const kubernetes_options& options) {
  const auto resources = [&] {
    const auto memory = yaml_string(options.memory);
    const auto gpus = options.gpus > 0 ? fmt::format(", nvidia.com/gpu: {}", options.gpus) : std::string{};
    return fmt::format("{{requests: {{cpu: {0}, memory: {1}}}, limits: {{memory: {1}{2}}}}}", options.cpus, memory,
                       gpus);
  }();
  const std::vector<std::pair<std::string, std::string>> words{
      {"@NAME@", job.name},
      {"@NAMESPACE@", options.name_space},
      {"@IMAGE@", yaml_string(options.image)},
      {"@NODES@", std::to_string(options.nodes)},
      {"@CPUS@", std::to_string(options.cpus)},
      {"@RESOURCES@", resources},
      {"@STORAGE@", yaml_string(options.storage)},
      {"@SECRET@", options.secret},
      {"@COMMAND@", command_of(job)},
      {"@ENVIRONMENT@", environment_of(job)},
  };
  // What a user's words contain is not replaced again.
  std::string result;
  for (auto rest = embedded_kubernetes_yaml(); !rest.empty();) {
    const auto* found = static_cast<const std::pair<std::string, std::string>*>(nullptr);
    for (const auto& each : words)
      if (rest.starts_with(each.first))
        found = &each;
    result += found != nullptr ? found->second : std::string{rest.substr(0, 1)};
    rest.remove_prefix(found != nullptr ? found->first.size() : 1);
  }
  return result;
}

expected<void> validate_kubernetes_name(const std::string& option, const std::string& name) {
  constexpr std::size_t longest = 40;
  const auto is_alphanumeric = [](unsigned char each) {
    return std::isdigit(each) != 0 || (each >= 'a' && each <= 'z');
  };
  const auto is_good =
      !name.empty() && name.size() <= longest && is_alphanumeric(name.front()) && is_alphanumeric(name.back()) &&
      std::ranges::all_of(name, [&](unsigned char each) { return is_alphanumeric(each) || each == '-'; });
  if (is_good)
    return {};
  return fail(
      errc::invalid_argument,
      fmt::format("{} {}: Kubernetes takes at most {} small letters, digits and '-' here", option, name, longest));
}

} // namespace troupe::tool

#include "node/visible_gpus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace troupe::runtime {

namespace {

constexpr auto variable_name = "CUDA_VISIBLE_DEVICES";

std::uint32_t count_device_files(const std::filesystem::path& directory) {
  std::uint32_t result = 0;
  auto trouble = std::error_code{};
  for (const auto& each : std::filesystem::directory_iterator{directory, trouble}) {
    constexpr auto prefix = std::string_view{"nvidia"};
    auto name = each.path().filename().string();
    // Skips nvidiactl, nvidia-uvm and the like.
    if (name.starts_with(prefix) && name.size() > prefix.size() &&
        std::ranges::all_of(name.substr(prefix.size()), [](unsigned char c) { return std::isdigit(c) != 0; }))
      ++result;
  }
  return result;
}

std::vector<std::string> numbered(std::uint32_t count) {
  std::vector<std::string> result;
  for (std::uint32_t i = 0; i < count; ++i)
    result.push_back(std::to_string(i));
  return result;
}

std::string_view trimmed(std::string_view text) {
  auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_space(text.front()))
    text.remove_prefix(1);
  while (!text.empty() && is_space(text.back()))
    text.remove_suffix(1);
  return text;
}

bool is_device(std::string_view entry, std::uint32_t present) {
  // A UUID is not checked.
  if (entry.starts_with("GPU-") || entry.starts_with("MIG-"))
    return true;
  std::uint32_t number = 0;
  auto [end, trouble] = std::from_chars(entry.data(), entry.data() + entry.size(), number);
  return trouble == std::errc{} && end == entry.data() + entry.size() && number < present;
}

} // namespace

std::vector<std::string> visible_gpus(const std::filesystem::path& device_directory,
                                      const std::optional<std::string>& variable) {
  auto present = count_device_files(device_directory);
  if (!variable)
    return numbered(present);
  std::vector<std::string> result;
  auto rest = std::string_view{*variable};
  while (true) {
    auto comma = rest.find(',');
    auto entry = trimmed(rest.substr(0, comma));
    if (!is_device(entry, present))
      return result;
    if (std::ranges::find(result, entry) != result.end())
      return {};
    result.emplace_back(entry);
    if (comma == std::string_view::npos)
      return result;
    rest.remove_prefix(comma + 1);
  }
}

expected<std::vector<std::string>> gpus_to_offer(std::optional<std::uint32_t> wanted) {
  const auto* value = std::getenv(variable_name);
  auto variable = value == nullptr ? std::optional<std::string>{} : std::string{value};
  auto result = visible_gpus("/dev", variable);
  if (!wanted)
    return result;
  if (*wanted > result.size()) {
    if (variable)
      return fail(errc::invalid_argument,
                  fmt::format("cannot offer {} GPUs, because {}={} selects only {}: offer fewer, "
                              "or name more devices there",
                              *wanted, variable_name, *variable, result.size()));
    return numbered(*wanted);
  }
  result.resize(*wanted);
  return result;
}

} // namespace troupe::runtime

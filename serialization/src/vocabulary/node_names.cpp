#include <troupe/node_names.hpp>

#include <troupe/config.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace troupe {

namespace {

constexpr std::string_view dns_prefix = "dns:";

bool is_plain(std::string_view text) {
  return text.size() <= node_text_limit_bytes &&
         std::ranges::all_of(text, [](unsigned char c) { return c >= 0x20 && c < 0x7f; });
}

/// What is left of a line without its comment and the space around it.
std::string_view trimmed(std::string_view line) {
  constexpr auto space = " \t\r";
  line = line.substr(0, line.find('#'));
  const auto first = line.find_first_not_of(space);
  return first == std::string_view::npos ? std::string_view{}
                                         : line.substr(first, line.find_last_not_of(space) - first + 1);
}

/// HOST, HOST:PORT or [IPV6]:PORT. An address of IPv6 needs its brackets.
expected<std::string> parse_host_of_file(const std::string& text) {
  const auto has_port = text.ends_with(']') ? false : text.find(':') != std::string::npos;
  TROUPE_TRY(const auto where, parse_endpoint(has_port ? text : fmt::format("{}:{}", text, default_node_port)));
  return to_string(where);
}

/// What follows a host in a line.
expected<std::uint32_t> parse_slots(std::string_view text) {
  constexpr std::string_view key = "slots=";
  std::uint32_t result = 0;
  const auto digits = text.starts_with(key) ? text.substr(key.size()) : std::string_view{};
  const auto [last, code] = std::from_chars(digits.data(), digits.data() + digits.size(), result);
  if (digits.empty() || code != std::errc{} || last != digits.data() + digits.size() || result == 0)
    return fail(errc::invalid_argument,
                fmt::format("'{}' is not slots=N with the most workers of this host, from 1", text));
  return result;
}

} // namespace

expected<std::vector<named_node>> parse_hosts(const std::string& name, const std::string& text) {
  std::vector<named_node> result;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    const auto line = trimmed(std::string_view{text}.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (line.empty())
      continue;
    const auto wrong = [&](const std::string& why) {
      return fail(errc::invalid_argument, fmt::format("{}:{}: {}", name, number, why));
    };
    const auto host_end = std::min(line.find_first_of(" \t"), line.size());
    auto address = parse_host_of_file(std::string{line.substr(0, host_end)});
    if (!address)
      return wrong(address.error().message);
    if (std::ranges::find(result, *address, &named_node::address) != result.end())
      return wrong(fmt::format("node '{}' is listed more than once", *address));
    result.push_back({std::move(*address)});
    const auto rest = trimmed(line.substr(host_end));
    if (rest.empty())
      continue;
    const auto slots = parse_slots(rest);
    if (!slots)
      return wrong(slots.error().message);
    result.back().slots = *slots;
  }
  if (result.empty())
    return fail(errc::invalid_argument,
                fmt::format("{}: names no host: write a line HOST[:PORT] [slots=N] for each", name));
  return result;
}

expected<void> name_nodes(cluster_config& cluster, const std::string& text) {
  cluster.nodes.clear();
  cluster.discover = {};
  if (text.starts_with(dns_prefix)) {
    cluster.discover = {node_source::kind::dns_name, text.substr(dns_prefix.size())};
    if (cluster.discover.where.empty() || text.find(',') != std::string::npos)
      return fail(errc::invalid_argument,
                  fmt::format("'{}' is not dns:NAME, as in dns:nodes.training.svc.cluster.local", text));
    return {};
  }
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    if (end > begin)
      cluster.nodes.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (cluster.nodes.empty())
    return fail(errc::invalid_argument, "no node is named: write HOST:PORT of each, separated by commas, or dns:NAME");
  for (const auto& each : cluster.nodes)
    TROUPE_TRY(parse_endpoint(each));
  return {};
}

expected<void> validate_names(const std::map<std::string, std::string>& labels, const resources& offered) {
  const auto is_plain_label = [](const auto& x) { return is_plain(x.first) && is_plain(x.second); };
  const auto is_plain_resource = [](const auto& x) { return is_plain(x.first); };
  if (labels.size() > node_list_limit || !std::ranges::all_of(labels, is_plain_label) ||
      offered.custom.size() > node_list_limit || !std::ranges::all_of(offered.custom, is_plain_resource))
    return fail(
        errc::invalid_argument,
        fmt::format("labels and names of resources are printable ASCII of at most {} characters, and a node has "
                    "at most {} of each",
                    node_text_limit_bytes, node_list_limit));
  return {};
}

} // namespace troupe

#include <troupe/member.hpp>

#include <troupe/config.hpp>
#include <troupe/messages/node.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace troupe {

namespace {

bool is_plain(std::string_view text) {
  return text.size() <= member_text_limit_bytes &&
         std::ranges::all_of(text, [](unsigned char c) { return c >= 0x20 && c < 0x7f; });
}

bool is_plausible(const resources& x) {
  return x.cpus <= 1'000'000 && x.gpus >= 0 && x.gpus <= 1'000'000;
}

} // namespace

std::uint32_t workers_of(const cluster_member& member) {
  std::uint32_t result = 0;
  for (const auto& each : member.runs)
    result += each.workers;
  return result;
}

std::string why_unusable(const listed_member& member) {
  const auto& what = member.what;
  if (what.protocol != protocol_version)
    return fmt::format("it speaks version {} of the protocol (Troupe {}), this program version {}: install the same "
                       "Troupe on all hosts",
                       what.protocol, what.version, protocol_version);
  if (what.phase == member_phase::leaving)
    return "its caf-node ends";
  if (what.phase == member_phase::drained)
    return fmt::format("it is drained: `troupe resume {}` takes it back", what.address);
  if (member.is_silent)
    return fmt::format("it has said nothing for {} s", member.silent_for.count() / 1000);
  return {};
}

expected<void> validate_names(const std::map<std::string, std::string>& labels, const resources& offered) {
  const auto is_plain_label = [](const auto& x) { return is_plain(x.first) && is_plain(x.second); };
  const auto is_plain_resource = [](const auto& x) { return is_plain(x.first); };
  if (labels.size() > member_list_limit || !std::ranges::all_of(labels, is_plain_label) ||
      offered.custom.size() > member_list_limit || !std::ranges::all_of(offered.custom, is_plain_resource))
    return fail(
        errc::invalid_argument,
        fmt::format("labels and names of resources are printable ASCII of at most {} characters, and a node has "
                    "at most {} of each",
                    member_text_limit_bytes, member_list_limit));
  return {};
}

expected<void> validate(const cluster_member& member) {
  const auto where = parse_endpoint(member.address);
  if (!where || where->port == 0 || !is_plain(member.address))
    return fail(errc::invalid_argument, "a member without an address that is HOST:PORT");
  const auto is_plain_run = [](const member_run& x) { return is_plain(x.run) && is_plain(x.name); };
  if (!is_plain(member.host) || !is_plain(member.version) || member.runs.size() > member_list_limit ||
      !std::ranges::all_of(member.runs, is_plain_run))
    return fail(errc::invalid_argument,
                fmt::format("member {} with texts that are too long or not printable", member.address));
  TROUPE_TRY(validate_names(member.labels, member.offered));
  TROUPE_TRY(validate_names({}, member.free));
  if (!is_plausible(member.offered) || !is_plausible(member.free))
    return fail(errc::invalid_argument, fmt::format("member {} with resources that no host has", member.address));
  return {};
}

} // namespace troupe

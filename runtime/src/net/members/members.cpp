#include <troupe/runtime/members.hpp>

#include "net/members/member_messages.hpp"
#include "net/members/member_questions.hpp"

#include <troupe/actors/decisions/member_table.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::runtime {

namespace {

using nlohmann::json;

/// What one node knows, and which entry nodes know more.
struct answer {
  std::vector<listed_member> members;
  std::vector<std::string> entries;
};

expected<answer> ask_for_members(const std::string& address, const member_access& how) {
  TROUPE_TRY(const auto text, ask_node(address, {{"ask", "members"}}, how));
  answer result;
  for (const auto& each : text.value("members", json::array())) {
    TROUPE_TRY(auto member, parse_listed(each));
    result.members.push_back(std::move(member));
  }
  for (const auto& each : text.value("entries", json::array()))
    if (each.is_string())
      result.entries.push_back(each.get<std::string>());
  return result;
}

expected<cluster_member> command(const std::string& address, const json& what, const member_access& how) {
  TROUPE_TRY(const auto text, ask_node(address, what, how));
  return parse_member(text.value("self", json::object()));
}

} // namespace

expected<std::vector<listed_member>> list_members(const std::vector<std::string>& entries, const member_access& how) {
  error last{errc::invalid_argument, "no entry node is named"};
  for (const auto& entry : entries) {
    auto first = ask_for_members(entry, how);
    if (!first) {
      last = std::move(first.error());
      continue;
    }
    for (const auto& further : first->entries)
      if (auto more = ask_for_members(further, how)) {
        std::ranges::move(more->members, std::back_inserter(first->members));
        break;
      }
    return actors::merge_members(std::move(first->members));
  }
  if (entries.size() < 2)
    return fail(std::move(last));
  return fail(last.code, fmt::format("none of the {} entry nodes answers; the last: {}", entries.size(), last.message));
}

expected<cluster_member> drain_node(const std::string& address, std::chrono::milliseconds patience,
                                    const member_access& how) {
  return command(address, {{"ask", "drain"}, {"patience_ms", patience.count()}}, how);
}

expected<cluster_member> resume_node(const std::string& address, const member_access& how) {
  return command(address, {{"ask", "resume"}}, how);
}

} // namespace troupe::runtime

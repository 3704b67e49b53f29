#include <troupe/actors/decisions/mirror_owner.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace troupe::actors {

std::string to_json(const mirror_owner& owner) {
  return nlohmann::ordered_json{{"run", owner.run},   {"claim", owner.claim}, {"token", owner.token},
                                {"host", owner.host}, {"pid", owner.pid},     {"time", owner.time}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<mirror_owner> parse_mirror_owner(std::string_view json) {
  const auto found = nlohmann::json::parse(json, nullptr, false);
  try {
    mirror_owner result;
    found.at("run").get_to(result.run);
    found.at("claim").get_to(result.claim);
    found.at("token").get_to(result.token);
    found.at("host").get_to(result.host);
    found.at("pid").get_to(result.pid);
    found.at("time").get_to(result.time);
    return result;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::string describe(const mirror_owner& owner) {
  return fmt::format("the driver with process id {} on {}, since {}", owner.pid, owner.host, owner.time);
}

std::uint64_t next_claim(const std::optional<mirror_owner>& found, std::uint64_t known) {
  return std::max(found ? found->claim : 0, known) + 1;
}

mirror_standing standing_of(const mirror_owner& own, const std::optional<mirror_owner>& found) {
  if (!found || found->claim < own.claim)
    return mirror_standing::takes;
  return found->token == own.token ? mirror_standing::owns : mirror_standing::superseded;
}

} // namespace troupe::actors

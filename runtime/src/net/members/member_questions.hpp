#pragma once

#include "net/members/member_client.hpp"

#include <troupe/runtime/members.hpp>

#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>

/// Questions of drivers and tools to a node, with their keys (see member_messages.hpp).
namespace troupe::runtime {

/// Fails as `member_client::connect` does, and for an address or keys that are none.
[[nodiscard]] expected<member_client> connect_to_node(const std::string& address, const member_access& how,
                                                      std::stop_token stop = {});

/// One question over a connection of its own.
[[nodiscard]] expected<nlohmann::json> ask_node(const std::string& address, const nlohmann::json& question,
                                                const member_access& how);

} // namespace troupe::runtime

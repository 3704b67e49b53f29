#include "net/members/member_questions.hpp"

#include "net/host_name.hpp"
#include "net/keys/key_source.hpp"

#include <troupe/config.hpp>
#include <troupe/runtime/keys.hpp>

#include <memory>
#include <utility>

namespace troupe::runtime {

namespace {

expected<std::shared_ptr<key_source>> keys_for(const endpoint& where, const member_access& how) {
  if (how.insecure)
    return std::shared_ptr<key_source>{};
  const auto directory = how.keys.empty() ? default_key_directory() : how.keys;
  TROUPE_TRY(auto files, is_loopback(where.host) ? loopback_keys(directory)
                                                 : cluster_keys(directory, this_host(), certificate_role::driver));
  return key_source::make(std::move(files));
}

} // namespace

expected<member_client> connect_to_node(const std::string& address, const member_access& how, std::stop_token stop) {
  TROUPE_TRY(const auto where, parse_endpoint(address));
  TROUPE_TRY(const auto keys, keys_for(where, how));
  return member_client::connect(where, keys, how.limit, std::move(stop));
}

expected<nlohmann::json> ask_node(const std::string& address, const nlohmann::json& question,
                                  const member_access& how) {
  TROUPE_TRY(auto node, connect_to_node(address, how));
  return node.ask(question, how.limit);
}

} // namespace troupe::runtime

#include "certs.hpp"

#include <troupe/runtime/keys.hpp>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace troupe::tool {

namespace {

using runtime::certificate_role;

struct certs_arguments {
  std::filesystem::path keys;
  std::string host;
  /// "node", "driver" or "both"; empty if not given.
  std::string role;
  std::vector<std::string> also;
  bool json = false;
};

std::optional<certificate_role> role_in(const certs_arguments& given) {
  if (given.role.empty())
    return std::nullopt;
  return given.role == "node"     ? certificate_role::node
         : given.role == "driver" ? certificate_role::driver
                                  : certificate_role::both;
}

int certs_failed(const error& reason) {
  fmt::print(stderr, "troupe certs: {}\n", reason.message);
  return 1;
}

int init(const certs_arguments& given) {
  if (auto made = runtime::init_cluster_ca(given.keys); !made)
    return certs_failed(made.error());
  const auto cluster = given.keys / "cluster";
  fmt::print("Made the certificate authority of a cluster:\n"
             "  {}  copy it to every host\n"
             "  {}  keep it here: it can admit hosts to the cluster\n"
             "Next, for each host of a caf-node: troupe certs issue HOST\n"
             "and for the host of the trainer, by its host name: troupe certs issue HOST --role driver\n",
             (cluster / "ca.pem").string(), (cluster / "ca.key").string());
  return 0;
}

void print_delivery(const runtime::tls_files& made, const std::string& host) {
  const auto files = fmt::format("{} {} {}", made.certificate.string(), made.key.string(), made.ca.string());
  fmt::print("  {}\n"
             "  {}  secret\n"
             "Copy these two and {} to the directory ~/.config/troupe/keys/cluster on {} (or $TROUPE_KEYS/cluster "
             "there), readable only by its owner:\n"
             "  ssh {} 'mkdir -p -m 700 ~/.config/troupe/keys/cluster'\n"
             "  scp -p {} {}:.config/troupe/keys/cluster/\n",
             made.certificate.string(), made.key.string(), made.ca.string(), host, host, files, host);
}

int issue(const certs_arguments& given) {
  const auto role = role_in(given).value_or(certificate_role::node);
  auto made = runtime::issue_certificate(given.keys, {given.host, role, given.also});
  if (!made)
    return certs_failed(made.error());
  fmt::print("Made the certificate of {}, as {}, valid for 13 months:\n", given.host, to_string(role));
  print_delivery(*made, given.host);
  return 0;
}

int renew(const certs_arguments& given) {
  auto made = runtime::renew_certificate(
      given.keys, given.host, {role_in(given), given.also.empty() ? std::nullopt : std::optional{given.also}});
  if (!made)
    return certs_failed(made.error());
  fmt::print("Made a new certificate of {}, valid for 13 months. The one before stays valid until it expires or is "
             "revoked. A caf-node takes the new files for its next connection:\n",
             given.host);
  print_delivery(*made, given.host);
  return 0;
}

int revoke(const certs_arguments& given) {
  auto count = runtime::revoke_certificates(given.keys, given.host);
  if (!count)
    return certs_failed(count.error());
  const auto list = (given.keys / "cluster" / "revoked.crl").string();
  fmt::print(
      "Revoked all {} certificates that were made for {}. Copy the list of revoked certificates to every host of "
      "the cluster: a caf-node refuses them from its next connection on, and ends the connections that they "
      "have:\n"
      "  scp -p {} HOST:.config/troupe/keys/cluster/\n",
      *count, given.host, list);
  return 0;
}

std::string day_of(std::chrono::system_clock::time_point x) {
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::chrono::system_clock::to_time_t(x)));
}

std::string_view state_of(const runtime::issued_certificate& x) {
  return x.is_revoked                                   ? "revoked"
         : x.expires < std::chrono::system_clock::now() ? "expired"
         : x.is_replaced                                ? "replaced"
                                                        : "valid";
}

int list(const certs_arguments& given) {
  const auto all = runtime::list_certificates(given.keys);
  if (!all)
    return certs_failed(all.error());
  if (given.json) {
    auto out = nlohmann::json::array();
    for (const auto& each : *all)
      out.push_back({{"host", each.host},
                     {"role", to_string(each.role)},
                     {"also", each.also},
                     {"serial", each.serial},
                     {"expires", day_of(each.expires)},
                     {"state", state_of(each)},
                     {"revoked", each.is_revoked}});
    fmt::print("{}\n", out.dump(2));
    return 0;
  }
  fmt::print("{:<28} {:<16} {:<10} {:<9} {}\n", "HOST", "ROLE", "EXPIRES", "STATE", "SERIAL NUMBER");
  for (const auto& each : *all)
    fmt::print("{:<28} {:<16} {:<10} {:<9} {}\n", each.host, to_string(each.role), day_of(each.expires), state_of(each),
               each.serial);
  return 0;
}

} // namespace

void add_certs(CLI::App& app, command& chosen) {
  // Shared with the callbacks, because the options write to it.
  auto given = std::make_shared<certs_arguments>();
  given->keys = runtime::default_key_directory();
  auto* certs = app.add_subcommand("certs", "Make keys with which the hosts of a cluster authenticate each other");
  certs->require_subcommand(0, 1);
  certs->callback([certs, &chosen] {
    if (certs->get_subcommands().empty())
      chosen = [certs] {
        fmt::print(stderr, "{}", certs->help());
        return 2;
      };
  });
  auto add = [&](const char* name, const char* description, int (*run)(const certs_arguments&)) {
    auto* added = certs->add_subcommand(name, description);
    added->add_option("--keys", given->keys, "Directory of keys (default: $TROUPE_KEYS, else ~/.config/troupe/keys)");
    added->callback([given, run, &chosen] { chosen = [given, run] { return run(*given); }; });
    return added;
  };
  auto add_host = [&](CLI::App* to) {
    to->add_option("HOST", given->host, "The host's name or address, as used by trainers and nodes")->required();
  };
  auto add_text = [&](CLI::App* to, const char* role, const char* also) {
    to->add_option("--role", given->role, role)->check(CLI::IsMember({"node", "driver", "both"}));
    to->add_option("--also", given->also, also)->allow_extra_args(false);
  };
  add("init", "Make the cluster's certificate authority, once, on one machine", init);
  auto* issued = add("issue", "Make the certificate of a host, on the authority's machine", issue);
  add_host(issued);
  add_text(issued, "What the host may be: node (default) for a caf-node, driver for a trainer, or both",
           "A further name or address of the host; may be repeated");
  auto* renewed = add("renew", "Make a new certificate of a host before the old one expires", renew);
  add_host(renewed);
  add_text(renewed, "What the host may be: node, driver or both (default: as before)",
           "A further name or address of the host; may be repeated, and replaces those of before");
  add_host(add("revoke", "Revoke all certificates that were ever made for a host", revoke));
  add("list", "Show all certificates that the authority has made", list)->add_flag("--json", given->json, "Print JSON");
}

} // namespace troupe::tool

#include "certs.hpp"

#include <troupe/runtime/keys.hpp>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

namespace troupe::tool {

namespace {

struct arguments {
  std::filesystem::path keys;
  std::string host;
};

int complain(const error& reason) {
  std::fprintf(stderr, "troupe certs: %s\n", reason.message.c_str());
  return 1;
}

int init(const arguments& given) {
  if (auto made = runtime::init_cluster_ca(given.keys); !made)
    return complain(made.error());
  auto cluster = given.keys / "cluster";
  std::printf("Made the certificate authority of a cluster:\n"
              "  %s  copy it to every host\n"
              "  %s  keep it here: it can admit hosts to the cluster\n"
              "Next, for each host, including the trainer's (by its host name): troupe certs issue HOST\n",
              (cluster / "ca.pem").c_str(), (cluster / "ca.key").c_str());
  return 0;
}

int issue(const arguments& given) {
  auto made = runtime::issue_certificate(given.keys, given.host);
  if (!made)
    return complain(made.error());
  std::printf("Made the certificate of %s, valid for both ends of a connection:\n"
              "  %s\n"
              "  %s  secret\n"
              "Copy these two and %s to the directory ~/.config/troupe/keys/cluster on %s (or $TROUPE_KEYS/cluster "
              "there), readable only by its owner:\n"
              "  ssh %s 'mkdir -p -m 700 ~/.config/troupe/keys/cluster'\n"
              "  scp -p %s %s %s %s:.config/troupe/keys/cluster/\n",
              given.host.c_str(), made->certificate.c_str(), made->key.c_str(), made->ca.c_str(), given.host.c_str(),
              given.host.c_str(), made->certificate.c_str(), made->key.c_str(), made->ca.c_str(), given.host.c_str());
  return 0;
}

} // namespace

void add_certs(CLI::App& app, command& chosen) {
  // Shared with the callbacks, because the options write to it.
  auto given = std::make_shared<arguments>();
  given->keys = runtime::default_key_directory();
  auto* certs = app.add_subcommand("certs", "Make keys with which the hosts of a cluster authenticate each other");
  certs->require_subcommand(0, 1);
  certs->callback([certs, &chosen] {
    if (certs->get_subcommands().empty())
      chosen = [certs] {
        std::fputs(certs->help().c_str(), stderr);
        return 2;
      };
  });
  auto add = [&](const char* name, const char* description, int (*run)(const arguments&)) {
    auto* added = certs->add_subcommand(name, description);
    added->add_option("--keys", given->keys, "Directory of keys (default: $TROUPE_KEYS, else ~/.config/troupe/keys)");
    added->callback([given, run, &chosen] { chosen = [given, run] { return run(*given); }; });
    return added;
  };
  add("init", "Make the cluster's certificate authority, once, on one machine", init);
  add("issue", "Make the certificate of a host, on the authority's machine", issue)
      ->add_option("HOST", given->host, "The host's name or address, as used by trainers and nodes")
      ->required();
}

} // namespace troupe::tool

#include "listening_node.hpp"
#include "net/connection.hpp"
#include "net/keys/certificates.hpp"
#include "net/keys/key_files.hpp"

#include <processes.hpp>
#include <scratch_directory.hpp>

#include <algorithm>
#include <atomic>
#include <doctest/doctest.h>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

/// Whom nodes and drivers with keys of a cluster accept, and what they say about the others.
namespace troupe::runtime {

namespace {

namespace fs = std::filesystem;
using testing::becomes_true;
using testing::hang_limit;

/// What a node logs.
class line_log {
 public:
  key_source::log_function function() {
    return [this](const std::string& line) {
      auto lock = std::lock_guard{mutex_};
      lines_.push_back(line);
    };
  }
  bool has(const std::string& text) {
    auto lock = std::lock_guard{mutex_};
    return std::ranges::any_of(lines_, [&](const auto& x) { return x.find(text) != std::string::npos; });
  }
  std::string all() {
    auto lock = std::lock_guard{mutex_};
    std::string result;
    for (const auto& each : lines_)
      result += each + "\n";
    return result;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// An authority, a node on 127.0.0.1 with its certificate, and a driver's.
struct cluster {
  cluster() {
    REQUIRE(init_cluster_ca(top()));
    node_keys = make({"127.0.0.1"});
    driver_keys = make({"driver", certificate_role::driver});
  }

  [[nodiscard]] fs::path top() const { return scratch.path() / "keys"; }

  tls_files make(const certificate_request& what) const {
    auto made = issue_certificate(top(), what);
    REQUIRE_MESSAGE(made, made.error().message);
    return *made;
  }

  /// The same authority's, as versions without roles made it.
  tls_files make_old(const std::string& host, const std::string& names, int valid_days = 3650) const {
    auto files = make({host});
    const auto authority = signing_authority{value_or_throw(read_key(top() / "cluster" / "ca.key")),
                                             value_or_throw(read_certificate(files.ca))};
    auto key = value_or_throw(read_key(files.key));
    auto certificate =
        value_or_throw(make_certificate(key.get(), authority, {host, names, certificate_role::none, valid_days}));
    fs::remove(files.certificate);
    REQUIRE(write_certificate(files.certificate, certificate.get()));
    return files;
  }

  expected<actors::node_actor> dial(const tls_files& with, const endpoint& where) const {
    system_host here{with};
    return connect(here.get(), where, hang_limit);
  }

  testing::scratch_directory scratch;
  line_log log;
  tls_files node_keys;
  tls_files driver_keys;
};

bool mentions(const error& reason, std::string_view text) {
  return reason.message.find(text) != std::string::npos;
}

} // namespace

TEST_CASE_FIXTURE(cluster, "a driver commands a node, and one host may be both") {
  listening_node there{node_keys};
  CHECK(dial(driver_keys, there.where));
  CHECK(dial(make({"both", certificate_role::both}), there.where));
}

TEST_CASE_FIXTURE(cluster, "a node refuses a peer without the driver's role, and logs whom") {
  listening_node there{node_keys, "here", log.function()};
  SUBCASE("another node") {
    auto refused = dial(make({"10.0.0.9"}), there.where);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == errc::not_authenticated);
    INFO(refused.error().message);
    CHECK(mentions(refused.error(), "another role"));
    CHECK(
        becomes_true([&] { return log.has("refused a connection from 127.0.0.1: the other end has a certificate"); }));
    INFO(log.all());
    CHECK(log.has("of 10.0.0.9, serial number"));
    CHECK(log.has("its role is node, and a driver is needed here"));
  }
  SUBCASE("a certificate of a version without roles") {
    auto refused = dial(make_old("10.0.0.9", "IP:10.0.0.9"), there.where);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == errc::not_authenticated);
    CHECK(becomes_true([&] { return log.has("it has no role; renew it with `troupe certs renew 10.0.0.9`"); }));
  }
  SUBCASE("an expired driver") {
    auto files = make({"late", certificate_role::driver});
    const auto authority = signing_authority{value_or_throw(read_key(top() / "cluster" / "ca.key")),
                                             value_or_throw(read_certificate(files.ca))};
    auto key = value_or_throw(read_key(files.key));
    auto certificate =
        value_or_throw(make_certificate(key.get(), authority, {"late", "DNS:late", certificate_role::driver, 0}));
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), -3600);
    REQUIRE(X509_sign(certificate.get(), authority.key.get(), EVP_sha256()) > 0);
    fs::remove(files.certificate);
    REQUIRE(write_certificate(files.certificate, certificate.get()));
    auto refused = dial(files, there.where);
    REQUIRE_FALSE(refused);
    INFO(refused.error().message);
    CHECK(mentions(refused.error(), "refused our certificate (certificate expired"));
    CHECK(becomes_true([&] { return log.has("it has expired; renew it with `troupe certs renew late`"); }));
  }
  SUBCASE("a revoked driver, without a restart of the node") {
    const auto revoked = make({"gone", certificate_role::driver});
    CHECK(dial(revoked, there.where));
    // The host's own files go; whoever has a copy still dials with it.
    for (const auto& file : {revoked.certificate, revoked.key})
      fs::copy_file(file, scratch.path() / file.filename());
    CHECK(revoke_certificates(top(), "gone") == 1);
    auto copy = revoked;
    copy.certificate = scratch.path() / "gone.pem";
    copy.key = scratch.path() / "gone.key";
    auto refused = dial(copy, there.where);
    REQUIRE_FALSE(refused);
    INFO(refused.error().message);
    CHECK(mentions(refused.error(), "refused our certificate (certificate revoked"));
    CHECK(becomes_true([&] { return log.has("certificate revoked"); }));
    CHECK(dial(driver_keys, there.where));
  }
}

TEST_CASE_FIXTURE(cluster, "a driver refuses a node by its name, its role and its revocation") {
  SUBCASE("another address") {
    listening_node there{make({"127.0.0.2"})};
    auto refused = dial(driver_keys, there.where);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == errc::not_authenticated);
    INFO(refused.error().message);
    CHECK(mentions(refused.error(), "of 127.0.0.2, serial number"));
    CHECK(mentions(refused.error(), "it is not for 127.0.0.1, which was dialled"));
    CHECK(mentions(refused.error(), "troupe certs renew 127.0.0.2 --also 127.0.0.1"));
  }
  SUBCASE("another name") {
    listening_node there{node_keys};
    auto refused = dial(driver_keys, {"localhost", there.where.port});
    REQUIRE_FALSE(refused);
    INFO(refused.error().message);
    CHECK(mentions(refused.error(), "it is not for localhost, which was dialled"));
  }
  SUBCASE("a further name is as good as the first") {
    listening_node there{make({"node-1", certificate_role::node, {"localhost", "127.0.0.1"}})};
    CHECK(dial(driver_keys, there.where));
    CHECK(dial(driver_keys, {"localhost", there.where.port}));
  }
  SUBCASE("another driver that poses as a node") {
    listening_node there{make({"localhost", certificate_role::driver, {"127.0.0.1"}})};
    auto refused = dial(driver_keys, there.where);
    REQUIRE_FALSE(refused);
    INFO(refused.error().message);
    CHECK(mentions(refused.error(), "its role is driver, and a node is needed here"));
  }
  SUBCASE("a node of a version without roles") {
    listening_node there{make_old("localhost", "IP:127.0.0.1")};
    auto refused = dial(driver_keys, there.where);
    REQUIRE_FALSE(refused);
    INFO(refused.error().message);
    CHECK(mentions(refused.error(), "it has no role; renew it with `troupe certs renew localhost`"));
  }
  SUBCASE("a revoked node") {
    listening_node there{node_keys};
    CHECK(dial(driver_keys, there.where));
    REQUIRE(revoke_certificates(top(), "127.0.0.1"));
    auto refused = dial(driver_keys, there.where);
    REQUIRE_FALSE(refused);
    INFO(refused.error().message);
    CHECK(mentions(refused.error(), "certificate revoked"));
  }
}

TEST_CASE_FIXTURE(cluster, "keys within a machine have neither names nor roles") {
  const auto keys = value_or_throw(loopback_keys(top()));
  listening_node there{keys};
  CHECK(dial(keys, {"localhost", there.where.port}));
  // And they are of another authority than the cluster's.
  CHECK_FALSE(dial(driver_keys, there.where));
}

TEST_CASE_FIXTURE(cluster,
                  "a node takes renewed keys for its next connection, and keeps the old ones if they are damaged") {
  listening_node there{node_keys, "here", log.function()};
  CHECK(dial(driver_keys, there.where));
  REQUIRE(renew_certificate(top(), "127.0.0.1", {{}, std::vector<std::string>{"localhost"}}));
  CHECK(dial(driver_keys, {"localhost", there.where.port}));
  CHECK(log.has("the keys have changed: "));
  fs::rename(top() / "cluster" / "127.0.0.1.key", scratch.path() / "aside");
  CHECK(dial(driver_keys, {"localhost", there.where.port}));
  CHECK(log.has("the keys have changed and cannot be used, so those before stay in use: "));
}

TEST_CASE_FIXTURE(cluster, "a connection ends soon after its peer was revoked") {
  listening_node there{node_keys, "here", log.function()};
  // The driver's list is elsewhere, and says nothing.
  const auto elsewhere = scratch.path() / "elsewhere";
  fs::create_directory(elsewhere);
  auto mine = driver_keys;
  for (auto* file : {&mine.certificate, &mine.key, &mine.ca}) {
    fs::copy_file(*file, elsewhere / file->filename());
    *file = elsewhere / file->filename();
  }
  system_host here{mine};
  auto node = connect(here.get(), there.where, hang_limit);
  REQUIRE_MESSAGE(node, node.error().message);
  auto is_lost = std::make_shared<std::atomic<bool>>(false);
  caf::actor_cast<caf::abstract_actor*>(*node)->attach_functor([is_lost](const caf::error&) { *is_lost = true; });
  REQUIRE(revoke_certificates(top(), "driver"));
  CHECK(becomes_true([&] { return is_lost->load(); }));
  CHECK(log.has("ended the connection with driver: its certificate, serial number "));
}

} // namespace troupe::runtime

#include <troupe/runtime/keys.hpp>

#include <doctest/doctest.h>

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace troupe::runtime {

namespace {

namespace fs = std::filesystem;

struct temporary_directory {
  fs::path path;

  temporary_directory() {
    auto name = (fs::temp_directory_path() / "troupe_keys_test_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~temporary_directory() { fs::remove_all(path); }
};

/// Sets or removes an environment variable during a test.
class scoped_variable {
 public:
  scoped_variable(const char* name, const char* value) : name_(name) {
    if (const auto* before = std::getenv(name))
      before_ = before;
    set(value);
  }
  scoped_variable(const scoped_variable&) = delete;
  scoped_variable& operator=(const scoped_variable&) = delete;
  ~scoped_variable() { set(before_ ? before_->c_str() : nullptr); }

 private:
  void set(const char* value) const {
    if (value == nullptr)
      unsetenv(name_);
    else
      setenv(name_, value, 1);
  }

  const char* name_;
  std::optional<std::string> before_;
};

using certificate_ptr = std::unique_ptr<X509, void (*)(X509*)>;
using key_ptr = std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)>;

template <class Read>
auto read_pem(const fs::path& path, Read read) {
  std::unique_ptr<FILE, int (*)(FILE*)> file{fopen(path.c_str(), "r"), &fclose};
  REQUIRE(file);
  return read(file.get());
}

certificate_ptr certificate_of(const fs::path& path) {
  return {read_pem(path, [](FILE* x) { return PEM_read_X509(x, nullptr, nullptr, nullptr); }), &X509_free};
}

key_ptr key_of(const fs::path& path) {
  return {read_pem(path, [](FILE* x) { return PEM_read_PrivateKey(x, nullptr, nullptr, nullptr); }), &EVP_PKEY_free};
}

/// The complete verification of TLS, for a server or a client.
bool verifies(X509* certificate, X509* authority, int purpose = X509_PURPOSE_SSL_SERVER) {
  std::unique_ptr<X509_STORE, void (*)(X509_STORE*)> store{X509_STORE_new(), &X509_STORE_free};
  std::unique_ptr<X509_STORE_CTX, void (*)(X509_STORE_CTX*)> context{X509_STORE_CTX_new(), &X509_STORE_CTX_free};
  X509_STORE_add_cert(store.get(), authority);
  X509_STORE_CTX_init(context.get(), store.get(), certificate, nullptr);
  X509_STORE_CTX_set_purpose(context.get(), purpose);
  return X509_verify_cert(context.get()) == 1;
}

std::string content_of(const fs::path& path) {
  std::ostringstream result;
  result << std::ifstream{path}.rdbuf();
  return result.str();
}

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

bool mentions(const error& reason, std::string_view text) {
  return reason.message.find(text) != std::string::npos;
}

/// Signs a certificate again with dates in the past.
void expire(const fs::path& path, EVP_PKEY* issuer_key) {
  auto certificate = certificate_of(path);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -7200);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), -3600);
  REQUIRE(X509_sign(certificate.get(), issuer_key, EVP_sha256()) > 0);
  std::unique_ptr<FILE, int (*)(FILE*)> file{fopen(path.c_str(), "w"), &fclose};
  REQUIRE(PEM_write_X509(file.get(), certificate.get()) == 1);
}

} // namespace

TEST_CASE("loopback keys are made at first use and kept") {
  temporary_directory top;
  auto directory = top.path / "a" / "keys";
  auto made = loopback_keys(directory);
  REQUIRE_MESSAGE(made.has_value(), made.error().message);
  CHECK(made->key.parent_path() == directory / "loopback");
  CHECK(mode_of(made->key) == 0600);
  CHECK(mode_of(directory) == 0700);
  CHECK(mode_of(directory / "loopback") == 0700);
  auto key = content_of(made->key);
  auto again = loopback_keys(directory);
  REQUIRE(again);
  CHECK(*again == *made);
  CHECK(content_of(again->key) == key);
}

TEST_CASE("a loopback certificate is a P-256 certificate of its own authority for both ends of a connection") {
  temporary_directory first;
  temporary_directory second;
  auto files = loopback_keys(first.path);
  auto others = loopback_keys(second.path);
  REQUIRE(files);
  REQUIRE(others);
  auto certificate = certificate_of(files->certificate);
  auto authority = certificate_of(files->ca);
  auto other_authority = certificate_of(others->ca);
  auto key = key_of(files->key);
  CHECK(EVP_PKEY_get_bits(key.get()) == 256);
  CHECK(EVP_PKEY_is_a(key.get(), "EC") == 1);
  CHECK(X509_check_private_key(certificate.get(), key.get()) == 1);
  CHECK(X509_verify(certificate.get(), X509_get0_pubkey(authority.get())) == 1);
  CHECK(X509_verify(certificate.get(), X509_get0_pubkey(other_authority.get())) != 1);
  CHECK(verifies(certificate.get(), authority.get()));
  CHECK(verifies(certificate.get(), authority.get(), X509_PURPOSE_SSL_CLIENT));
  CHECK_FALSE(verifies(certificate.get(), other_authority.get()));
  CHECK(X509_check_ca(authority.get()) == 1);
  CHECK(X509_check_ca(certificate.get()) == 0);
  CHECK(X509_check_host(certificate.get(), "localhost", 0, 0, nullptr) == 1);
  CHECK(X509_check_ip_asc(certificate.get(), "127.0.0.1", 0) == 1);
  CHECK(X509_check_ip_asc(certificate.get(), "::1", 0) == 1);
  CHECK(X509_check_ip_asc(certificate.get(), "127.0.0.2", 0) == 0);
}

TEST_CASE("eight processes that make loopback keys at the same time agree on one pair") {
  temporary_directory top;
  auto directory = top.path / "keys";
  int gate[2];
  REQUIRE(pipe(gate) == 0);
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    auto pid = fork();
    if (pid == 0) {
      close(gate[1]);
      char byte = 0;
      // The closing gate releases all at once.
      [[maybe_unused]] auto n = read(gate[0], &byte, 1);
      auto files = loopback_keys(directory);
      if (!files)
        std::fprintf(stderr, "%s\n", files.error().message.c_str());
      std::ofstream{top.path / std::to_string(getpid())} << (files ? content_of(files->key) : "");
      _exit(files ? 0 : 1);
    }
    children.push_back(pid);
  }
  close(gate[0]);
  close(gate[1]);
  for (auto pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(status == 0);
  }
  auto files = loopback_keys(directory);
  REQUIRE(files);
  for (auto pid : children)
    CHECK(content_of(top.path / std::to_string(pid)) == content_of(files->key));
  // The other attempts leave no files.
  auto entries = fs::directory_iterator{directory};
  CHECK(std::distance(begin(entries), end(entries)) == 1);
}

TEST_CASE("threads that make loopback keys at the same time agree on one pair") {
  temporary_directory top;
  std::vector<std::thread> threads;
  std::vector<std::string> keys(8);
  for (auto& key : keys)
    threads.emplace_back([&key, &top] { key = content_of(loopback_keys(top.path / "keys")->key); });
  for (auto& x : threads)
    x.join();
  for (const auto& key : keys)
    CHECK(key == keys.front());
  CHECK(keys.front().find("PRIVATE KEY") != std::string::npos);
}

TEST_CASE("keys that others may use or change are rejected") {
  temporary_directory top;
  auto files = loopback_keys(top.path);
  REQUIRE(files);
  fs::path culprit;
  SUBCASE("a readable key") {
    culprit = files->key;
    fs::permissions(culprit, fs::perms{0640});
  }
  SUBCASE("an authority that others can write to") {
    culprit = files->ca;
    fs::permissions(culprit, fs::perms{0666});
  }
  SUBCASE("a directory that others can write to") {
    culprit = files->key.parent_path();
    fs::permissions(culprit, fs::perms{0777});
  }
  auto result = loopback_keys(top.path);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == errc::not_authenticated);
  CHECK(mentions(result.error(), culprit.string()));
  CHECK(mentions(result.error(), "chmod"));
}

TEST_CASE("loopback keys that do not belong together are rejected with advice") {
  temporary_directory first;
  temporary_directory second;
  auto files = loopback_keys(first.path);
  auto others = loopback_keys(second.path);
  REQUIRE(files);
  REQUIRE(others);
  auto expected_code = errc::not_authenticated;
  SUBCASE("another key") {
    fs::copy_file(others->key, files->key, fs::copy_options::overwrite_existing);
  }
  SUBCASE("another authority") {
    fs::copy_file(others->ca, files->ca, fs::copy_options::overwrite_existing);
  }
  SUBCASE("a damaged certificate") {
    std::ofstream{files->certificate} << "no PEM";
  }
  SUBCASE("a missing key") {
    fs::remove(files->key);
    expected_code = errc::not_found;
  }
  auto result = loopback_keys(first.path);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == expected_code);
  CHECK(mentions(result.error(), "remove the directory"));
  fs::remove_all(first.path / "loopback");
  CHECK(loopback_keys(first.path));
}

TEST_CASE("expired loopback keys are made again") {
  temporary_directory top;
  auto files = loopback_keys(top.path);
  REQUIRE(files);
  // The authority's own signature is by a discarded key, and is not verified.
  auto key = key_of(files->key);
  expire(files->ca, key.get());
  auto before = content_of(files->key);
  auto renewed = loopback_keys(top.path);
  REQUIRE_MESSAGE(renewed.has_value(), renewed.error().message);
  CHECK(content_of(renewed->key) != before);
  CHECK(verifies(certificate_of(renewed->certificate).get(), certificate_of(renewed->ca).get()));
  auto entries = fs::directory_iterator{top.path};
  CHECK(std::distance(begin(entries), end(entries)) == 1);
}

TEST_CASE("the cluster's authority is made once and signs certificates for names and addresses") {
  temporary_directory top;
  REQUIRE(init_cluster_ca(top.path));
  CHECK(mode_of(top.path / "cluster" / "ca.key") == 0600);
  auto before = content_of(top.path / "cluster" / "ca.key");
  auto again = init_cluster_ca(top.path);
  REQUIRE_FALSE(again);
  CHECK(again.error().code == errc::already_exists);
  CHECK(content_of(top.path / "cluster" / "ca.key") == before);

  auto authority = certificate_of(top.path / "cluster" / "ca.pem");
  auto named = issue_certificate(top.path, {"Node-1.example.org"});
  REQUIRE_MESSAGE(named.has_value(), named.error().message);
  CHECK(named->certificate.filename() == "node-1.example.org.pem");
  CHECK(named->key.filename() == "node-1.example.org.key");
  CHECK(mode_of(named->key) == 0600);
  auto certificate = certificate_of(named->certificate);
  CHECK(verifies(certificate.get(), authority.get()));
  CHECK(X509_check_host(certificate.get(), "node-1.example.org", 0, 0, nullptr) == 1);
  CHECK(X509_check_host(certificate.get(), "node-2.example.org", 0, 0, nullptr) == 0);

  for (const auto* address : {"10.1.2.3", "fd00::17"}) {
    auto addressed = issue_certificate(top.path, {address});
    REQUIRE_MESSAGE(addressed.has_value(), addressed.error().message);
    CHECK(X509_check_ip_asc(certificate_of(addressed->certificate).get(), address, 0) == 1);
  }
  auto taken = issue_certificate(top.path, {"node-1.example.org"});
  REQUIRE_FALSE(taken);
  CHECK(taken.error().code == errc::already_exists);
  CHECK(cluster_keys(top.path, "[FD00:0::17]", certificate_role::node));
}

TEST_CASE("two certificates of one authority have different serial numbers and are valid for thirteen months") {
  temporary_directory top;
  REQUIRE(init_cluster_ca(top.path));
  auto first = certificate_of(issue_certificate(top.path, {"a"})->certificate);
  auto second = certificate_of(issue_certificate(top.path, {"b"})->certificate);
  CHECK(ASN1_INTEGER_cmp(X509_get0_serialNumber(first.get()), X509_get0_serialNumber(second.get())) != 0);
  int days = 0;
  int seconds = 0;
  REQUIRE(ASN1_TIME_diff(&days, &seconds, nullptr, X509_get0_notAfter(first.get())) == 1);
  CHECK(days >= 395);
  CHECK(days <= 396);
}

TEST_CASE("an invalid host name makes no file") {
  temporary_directory top;
  REQUIRE(init_cluster_ca(top.path));
  for (const auto* host : {"", "../escape", "a/b", "a,IP:10.0.0.1", "a b", ".", "..", "-x", "ca", "a\nb"}) {
    INFO(host);
    auto result = issue_certificate(top.path, {host});
    REQUIRE_FALSE(result);
    CHECK(result.error().code == errc::invalid_argument);
  }
}

TEST_CASE("the error for a host without cluster keys names the two commands") {
  temporary_directory top;
  auto none = cluster_keys(top.path, "node-1", certificate_role::node);
  REQUIRE_FALSE(none);
  CHECK(none.error().code == errc::not_found);
  CHECK(mentions(none.error(), "troupe certs init"));
  CHECK(mentions(none.error(), "troupe certs issue node-1"));
  auto early = issue_certificate(top.path, {"node-1"});
  REQUIRE_FALSE(early);
  CHECK(early.error().code == errc::not_found);
  CHECK(mentions(early.error(), "troupe certs init"));
}

TEST_CASE("cluster keys are found where they were made and where they were copied to") {
  temporary_directory top;
  temporary_directory other;
  REQUIRE(init_cluster_ca(top.path));
  auto issued = issue_certificate(top.path, {"node-1"});
  REQUIRE(issued);
  auto found = cluster_keys(top.path, "NODE-1", certificate_role::node);
  REQUIRE(found);
  CHECK(*found == *issued);
  fs::create_directory(other.path / "cluster");
  for (const auto& file : {issued->certificate, issued->key, issued->ca})
    fs::copy_file(file, other.path / "cluster" / file.filename());
  CHECK(cluster_keys(other.path, "node-1", certificate_role::node));
  fs::permissions(other.path / "cluster" / "node-1.key", fs::perms{0644});
  auto open = cluster_keys(other.path, "node-1", certificate_role::node);
  REQUIRE_FALSE(open);
  CHECK(open.error().code == errc::not_authenticated);
}

TEST_CASE("an expired cluster certificate is rejected and never replaced") {
  temporary_directory top;
  REQUIRE(init_cluster_ca(top.path));
  auto issued = issue_certificate(top.path, {"node-1"});
  REQUIRE(issued);
  expire(issued->certificate, key_of(top.path / "cluster" / "ca.key").get());
  auto result = cluster_keys(top.path, "node-1", certificate_role::node);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == errc::not_authenticated);
  CHECK(mentions(result.error(), "expired"));
  CHECK(mentions(result.error(), "troupe certs renew node-1"));
}

TEST_CASE("a certificate has a role, and is refused for another") {
  temporary_directory top;
  REQUIRE(init_cluster_ca(top.path));
  REQUIRE(issue_certificate(top.path, {"node-1"}));
  REQUIRE(issue_certificate(top.path, {"driver-1", certificate_role::driver}));
  REQUIRE(issue_certificate(top.path, {"both-1", certificate_role::both}));
  const auto permits = [&](const char* host, certificate_role role) {
    return cluster_keys(top.path, host, role).has_value();
  };
  CHECK(permits("node-1", certificate_role::node));
  CHECK_FALSE(permits("node-1", certificate_role::driver));
  CHECK(permits("driver-1", certificate_role::driver));
  CHECK_FALSE(permits("driver-1", certificate_role::node));
  CHECK(permits("both-1", certificate_role::node));
  CHECK(permits("both-1", certificate_role::driver));
  auto refused = cluster_keys(top.path, "node-1", certificate_role::driver);
  CHECK(refused.error().code == errc::not_authenticated);
  CHECK(mentions(refused.error(), "has the role node, and this program needs the role driver"));
  CHECK(mentions(refused.error(), "troupe certs renew node-1 --role both"));
  // Other programs that check the usage of certificates see a server and a client.
  auto authority = certificate_of(top.path / "cluster" / "ca.pem");
  auto node = certificate_of(top.path / "cluster" / "node-1.pem");
  auto driver = certificate_of(top.path / "cluster" / "driver-1.pem");
  CHECK(verifies(node.get(), authority.get(), X509_PURPOSE_SSL_SERVER));
  CHECK_FALSE(verifies(node.get(), authority.get(), X509_PURPOSE_SSL_CLIENT));
  CHECK(verifies(driver.get(), authority.get(), X509_PURPOSE_SSL_CLIENT));
  CHECK_FALSE(verifies(driver.get(), authority.get(), X509_PURPOSE_SSL_SERVER));
}

TEST_CASE("a renewed certificate has a new key, and the names and role of the one before unless they are changed") {
  temporary_directory top;
  REQUIRE(init_cluster_ca(top.path));
  auto first = issue_certificate(top.path, {"node-1", certificate_role::both, {"10.0.0.7", "node-1.example.org"}});
  REQUIRE(first);
  const auto key = content_of(first->key);
  auto renewed = renew_certificate(top.path, "NODE-1", {});
  REQUIRE_MESSAGE(renewed.has_value(), renewed.error().message);
  CHECK(*renewed == *first);
  CHECK(content_of(renewed->key) != key);
  CHECK(mode_of(renewed->key) == 0600);
  CHECK(cluster_keys(top.path, "node-1", certificate_role::driver));
  auto certificate = certificate_of(renewed->certificate);
  CHECK(X509_check_host(certificate.get(), "node-1", 0, 0, nullptr) == 1);
  CHECK(X509_check_host(certificate.get(), "node-1.example.org", 0, 0, nullptr) == 1);
  CHECK(X509_check_ip_asc(certificate.get(), "10.0.0.7", 0) == 1);
  REQUIRE(renew_certificate(top.path, "node-1", {certificate_role::node, std::vector<std::string>{"fd00::7"}}));
  CHECK_FALSE(cluster_keys(top.path, "node-1", certificate_role::driver));
  certificate = certificate_of(renewed->certificate);
  CHECK(X509_check_ip_asc(certificate.get(), "fd00::7", 0) == 1);
  CHECK(X509_check_ip_asc(certificate.get(), "10.0.0.7", 0) == 0);
  CHECK(renew_certificate(top.path, "node-2", {}).error().code == errc::not_found);
  CHECK(renew_certificate(top.path, "node-1", {{}, std::vector<std::string>{"a b"}}).error().code ==
        errc::invalid_argument);
}

TEST_CASE("revoking a host revokes every certificate that was ever made for it, and no other") {
  temporary_directory top;
  REQUIRE(init_cluster_ca(top.path));
  std::vector<std::string> serials;
  const auto list = [&] { return list_certificates(top.path).value(); };
  REQUIRE(issue_certificate(top.path, {"node-1"}));
  REQUIRE(renew_certificate(top.path, "node-1", {}));
  REQUIRE(renew_certificate(top.path, "node-1", {}));
  REQUIRE(issue_certificate(top.path, {"node-2"}));
  CHECK(list().size() == 4);
  CHECK(list()[0].is_replaced);
  CHECK(list()[1].is_replaced);
  CHECK_FALSE(list()[2].is_replaced);
  CHECK(revoke_certificates(top.path, "node-1") == 3);
  for (const auto& each : list())
    CHECK(each.is_revoked == (each.host == "node-1"));
  auto authority = certificate_of(top.path / "cluster" / "ca.pem");
  auto read_list = [&] {
    return std::unique_ptr<X509_CRL, void (*)(X509_CRL*)>{
        read_pem(top.path / "cluster" / "revoked.crl",
                 [](FILE* x) { return PEM_read_X509_CRL(x, nullptr, nullptr, nullptr); }),
        &X509_CRL_free};
  };
  auto revoked = read_list();
  REQUIRE(revoked);
  CHECK(X509_CRL_verify(revoked.get(), X509_get0_pubkey(authority.get())) == 1);
  CHECK(sk_X509_REVOKED_num(X509_CRL_get_REVOKED(revoked.get())) == 3);
  // Its files are of no use any more, and it may have new ones.
  CHECK_FALSE(fs::exists(top.path / "cluster" / "node-1.pem"));
  REQUIRE(issue_certificate(top.path, {"node-1"}));
  CHECK(cluster_keys(top.path, "node-1", certificate_role::node));
  CHECK(revoke_certificates(top.path, "node-1") == 4);
  CHECK(sk_X509_REVOKED_num(X509_CRL_get_REVOKED(read_list().get())) == 4);
  CHECK(revoke_certificates(top.path, "node-1") == 4);
  CHECK(cluster_keys(top.path, "node-2", certificate_role::node));
  CHECK(revoke_certificates(top.path, "node-3").error().code == errc::not_found);
}

TEST_CASE("a host whose own certificate was revoked is told so") {
  temporary_directory top;
  temporary_directory other;
  REQUIRE(init_cluster_ca(top.path));
  auto issued = issue_certificate(top.path, {"node-1"});
  REQUIRE(issued);
  fs::create_directory(other.path / "cluster");
  for (const auto& file : {issued->certificate, issued->key, issued->ca})
    fs::copy_file(file, other.path / "cluster" / file.filename());
  REQUIRE(revoke_certificates(top.path, "node-1"));
  CHECK(cluster_keys(other.path, "node-1", certificate_role::node));
  fs::copy_file(top.path / "cluster" / "revoked.crl", other.path / "cluster" / "revoked.crl");
  auto refused = cluster_keys(other.path, "node-1", certificate_role::node);
  REQUIRE_FALSE(refused);
  CHECK(mentions(refused.error(), "has been revoked"));
  std::ofstream{other.path / "cluster" / "revoked.crl"} << "no list";
  CHECK(mentions(cluster_keys(other.path, "node-1", certificate_role::node).error(), "revoked.crl"));
}

TEST_CASE("a certificate that the authority's list lacks is revoked with the others of its host if it is kept") {
  temporary_directory top;
  REQUIRE(init_cluster_ca(top.path));
  REQUIRE(issue_certificate(top.path, {"node-1"}));
  fs::remove(top.path / "cluster" / "issued.jsonl");
  CHECK(revoke_certificates(top.path, "node-1") == 1);
  std::ofstream{top.path / "cluster" / "issued.jsonl", std::ios::app} << "{}\n";
  auto damaged = list_certificates(top.path);
  REQUIRE_FALSE(damaged);
  CHECK(damaged.error().code == errc::damaged);
}

TEST_CASE("the last month before a certificate expires is warned of, with the command that renews it") {
  temporary_directory top;
  REQUIRE(init_cluster_ca(top.path));
  auto issued = issue_certificate(top.path, {"node-1"});
  REQUIRE(issued);
  const auto now = std::chrono::system_clock::now();
  CHECK(expiry_warning(*issued, now).empty());
  CHECK(expiry_warning(*issued, now + std::chrono::days{396 - 31}).empty());
  const auto warning = expiry_warning(*issued, now + std::chrono::days{396 - 29});
  CHECK(warning.find("troupe certs renew node-1") != std::string::npos);
  CHECK(expiry_warning(loopback_keys(top.path).value(), now + std::chrono::days{4000}).empty());
}

TEST_CASE("the directory of keys comes from the environment") {
  scoped_variable keys{"TROUPE_KEYS", "/k"};
  scoped_variable config{"XDG_CONFIG_HOME", "/c"};
  scoped_variable home{"HOME", "/h"};
  CHECK(default_key_directory() == "/k");
  scoped_variable no_keys{"TROUPE_KEYS", nullptr};
  CHECK(default_key_directory() == "/c/troupe/keys");
  scoped_variable no_config{"XDG_CONFIG_HOME", nullptr};
  CHECK(default_key_directory() == "/h/.config/troupe/keys");
}

TEST_CASE("loopback addresses are those that cannot leave the machine") {
  for (const auto* host : {"localhost", "LocalHost", "127.0.0.1", "127.255.3.4", "::1", "[::1]", "0:0:0:0:0:0:0:1"}) {
    INFO(host);
    CHECK(is_loopback(host));
  }
  for (const auto* host : {"", "0.0.0.0", "::", "128.0.0.1", "10.0.0.1", "localhost.example.org", "127.example.org",
                           "127.0.0.1.example.org"}) {
    INFO(host);
    CHECK_FALSE(is_loopback(host));
  }
}

} // namespace troupe::runtime

#include "listening_node.hpp"
#include "net/connection.hpp"

#include <troupe/actors/node.hpp>
#include <troupe/runtime/keys.hpp>
#include <troupe/runtime/program.hpp>

#include <caf/all.hpp>
#include <caf/io/middleman.hpp>
#include <caf/io/network/multiplexer.hpp>
#include <doctest/doctest.h>

#include <arpa/inet.h>
#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace troupe::runtime {

namespace {

namespace fs = std::filesystem;

using namespace std::chrono_literals;

/// Only a hang takes this long.
constexpr auto hang_limit = 60s;

// -- keys

struct scratch {
  fs::path path;

  scratch() {
    auto name = (fs::temp_directory_path() / "troupe_connection_test_XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  ~scratch() { fs::remove_all(path); }

  /// Keys of an authority with this name.
  tls_files keys(const std::string& authority = "ours") const {
    auto result = loopback_keys(path / authority);
    REQUIRE(result);
    return *result;
  }
};

/// Makes an expired certificate of the same authority.
tls_files expired_keys(const scratch& files) {
  auto top = files.path / "expired";
  REQUIRE(init_cluster_ca(top));
  auto result = issue_certificate(top, {"localhost", certificate_role::both});
  REQUIRE(result);
  // What is checked between hosts is not what these tests are about.
  result->scope = key_scope::loopback;
  auto open = [](const fs::path& path, const char* mode) {
    return std::unique_ptr<FILE, int (*)(FILE*)>{std::fopen(path.c_str(), mode), &std::fclose};
  };
  auto certificate = std::unique_ptr<X509, void (*)(X509*)>{
      PEM_read_X509(open(result->certificate, "r").get(), nullptr, nullptr, nullptr), X509_free};
  auto authority = std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)>{
      PEM_read_PrivateKey(open(top / "cluster" / "ca.key", "r").get(), nullptr, nullptr, nullptr), EVP_PKEY_free};
  REQUIRE(certificate);
  REQUIRE(authority);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -7200);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), -3600);
  REQUIRE(X509_sign(certificate.get(), authority.get(), EVP_sha256()) > 0);
  REQUIRE(PEM_write_X509(open(result->certificate, "w").get(), certificate.get()) == 1);
  return *result;
}

/// A node that returns the first message of a worker.
actors::node_actor::behavior_type echoing_node() {
  auto nothing = [] { return caf::make_error(caf::sec::unexpected_message); };
  return {
      [](const offer_request&) {
        return node_offer{"echo", "", 0, {}};
      },
      [=](const lease_request&) -> caf::result<void> { return nothing(); },
      [=](const open_run&, const actors::run_control&, const actors::collectives_actor&,
          const actors::checkpoint_store&) -> caf::result<run_opened> { return nothing(); },
      [=](const claim_run&) -> caf::result<run_claimed> { return nothing(); },
      [=](const adopt_run&, const actors::run_control&, const actors::collectives_actor&,
          const actors::checkpoint_store&) -> caf::result<run_claimed> { return nothing(); },
      [=](const start_workers&) -> caf::result<workers_started> { return nothing(); },
      [=](const keep_processes&, const actors::process_keeper&) -> caf::result<void> { return nothing(); },
      [=](const kill_worker&) -> caf::result<void> { return nothing(); },
      [=](const worker_beat&) -> caf::result<void> { return nothing(); },
      [=](const actors::drain_request&) -> caf::result<void> { return nothing(); },
      [](const node_question&) { return node_report{}; },
      [=](const drain_node&) -> caf::result<node_report> { return nothing(); },
      [=](const resume_node&) -> caf::result<node_report> { return nothing(); },
      [=](const end_run&) -> caf::result<void> { return nothing(); },
      [](const join_request& request) {
        return join_challenge{request.nonce, ""};
      },
      [=](const join_proof&, const actors::driver_follower&)
          -> caf::result<actors::run_control, actors::collectives_actor, actors::checkpoint_store> {
        return nothing();
      },
  };
}

/// Bytes that differ between positions.
std::string varied_text(std::size_t size, std::uint64_t seed) {
  auto result = std::string(size, '\0');
  for (auto& each : result) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    each = static_cast<char>(seed >> 56);
  }
  return result;
}

/// The name of the node's host, or the error.
std::string ask(caf::actor_system& system, const actors::node_actor& node) {
  std::string result;
  auto self = caf::scoped_actor{system};
  self->request(node, hang_limit, offer_request{})
      .receive([&](const node_offer& offer) { result = offer.host; },
               [&](const caf::error& reason) { result = caf::to_string(reason); });
  return result;
}

bool mentions(const error& reason, std::string_view text) {
  return reason.message.find(text) != std::string::npos;
}

// -- peers other than Troupe

unique_fd tcp_connection(const endpoint& where) {
  auto result = unique_fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(where.port);
  ::inet_pton(AF_INET, where.host.c_str(), &address.sin_addr);
  REQUIRE(::connect(result.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  return result;
}

void send_text(const unique_fd& to, std::string_view text) {
  CHECK(::send(to.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
}

/// Whether the other end closes the connection, possibly after sending data.
bool is_closed_by_peer(const unique_fd& fd) {
  std::array<char, 512> ignored{};
  for (auto waiting = pollfd{fd.get(), POLLIN, 0};;) {
    if (::poll(&waiting, 1, static_cast<int>(std::chrono::milliseconds{hang_limit}.count())) <= 0)
      return false;
    if (::recv(fd.get(), ignored.data(), ignored.size(), 0) <= 0)
      return true;
  }
}

/// A plain OpenSSL client; blocks. Returns whether the server accepted it as far as sending data.
bool is_let_in(const endpoint& where, const std::optional<tls_files>& keys, int newest_version = TLS1_3_VERSION) {
  auto context = std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)>{SSL_CTX_new(TLS_client_method()), SSL_CTX_free};
  SSL_CTX_set_max_proto_version(context.get(), newest_version);
  if (keys) {
    REQUIRE(SSL_CTX_use_certificate_chain_file(context.get(), keys->certificate.c_str()) == 1);
    REQUIRE(SSL_CTX_use_PrivateKey_file(context.get(), keys->key.c_str(), SSL_FILETYPE_PEM) == 1);
  }
  auto fd = tcp_connection(where);
  auto session = std::unique_ptr<SSL, void (*)(SSL*)>{SSL_new(context.get()), SSL_free};
  SSL_set_fd(session.get(), fd.get());
  char byte = 0;
  auto result = SSL_connect(session.get()) == 1 && SSL_read(session.get(), &byte, 1) == 1;
  ERR_clear_error();
  return result;
}

/// Accepts connections and handles each with a given function.
class odd_server {
 public:
  explicit odd_server(std::function<void(const unique_fd&)> treat)
      : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    REQUIRE(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener_.get(), 16) == 0);
    REQUIRE(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    where = {"127.0.0.1", ntohs(address.sin_port)};
    thread_ = std::thread{[this, treat = std::move(treat)] {
      for (;;) {
        auto fd = unique_fd{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
        if (!fd)
          return;
        treat(fd);
      }
    }};
  }
  ~odd_server() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

  endpoint where;

 private:
  unique_fd listener_;
  std::thread thread_;
};

/// Sets all TCP connections of this process to the smallest possible buffers, so that writes find no room. Returns
/// their number.
int shrink_send_buffers() {
  auto result = 0;
  for (const auto& entry : fs::directory_iterator{"/proc/self/fd"}) {
    auto fd = std::stoi(entry.path().filename().string());
    sockaddr_in peer{};
    socklen_t size = sizeof(peer);
    auto smallest = 1;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && peer.sin_family == AF_INET &&
        ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &smallest, sizeof(smallest)) == 0)
      ++result;
  }
  return result;
}

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  auto seconds = [](const timeval& x) { return static_cast<double>(x.tv_sec) + static_cast<double>(x.tv_usec) * 1e-6; };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

} // namespace

TEST_CASE("a node is reached over TLS and answers") {
  scratch files;
  listening_node there{files.keys(), "over there"};
  system_host here{files.keys()};
  auto node = connect(here.get(), there.where, hang_limit);
  REQUIRE_MESSAGE(node, node.error().message);
  CHECK(ask(here.get(), *node) == "over there");
  SUBCASE("the same connection when it is dialled again") {
    auto again = connect(here.get(), there.where, hang_limit);
    REQUIRE_MESSAGE(again, again.error().message);
    CHECK(*again == *node);
    CHECK(ask(here.get(), *again) == "over there");
  }
  SUBCASE("and so is an unencrypted node if both ends ask for it") {
    listening_node plain{std::nullopt, "plain"};
    system_host insecure{std::nullopt};
    auto found = connect(insecure.get(), plain.where, hang_limit);
    REQUIRE_MESSAGE(found, found.error().message);
    CHECK(ask(insecure.get(), *found) == "plain");
  }
}

TEST_CASE("the error tells which end refused the other, and why") {
  scratch files;
  listening_node there{files.keys()};
  SUBCASE("a node of another authority") {
    system_host here{files.keys("theirs")};
    auto node = connect(here.get(), there.where, hang_limit);
    REQUIRE(!node);
    CHECK(node.error().code == errc::not_authenticated);
    CHECK(mentions(node.error(), "certificate that we refuse"));
    CHECK(mentions(node.error(), to_string(there.where)));
    CHECK(mentions(node.error(), "troupe certs"));
  }
  SUBCASE("our certificate is of another authority, although theirs is of the one that we trust") {
    auto mixed = files.keys("theirs");
    mixed.ca = files.keys().ca;
    system_host here{mixed};
    auto node = connect(here.get(), there.where, hang_limit);
    REQUIRE(!node);
    CHECK(node.error().code == errc::not_authenticated);
    INFO(node.error().message);
    CHECK(mentions(node.error(), "refused our certificate"));
  }
  SUBCASE("an expired certificate of ours") {
    auto expired = expired_keys(files);
    auto good = files.keys();
    good.ca = expired.ca;
    listening_node elsewhere{good};
    auto mixed = expired;
    mixed.ca = files.keys().ca;
    system_host here{mixed};
    auto node = connect(here.get(), elsewhere.where, hang_limit);
    REQUIRE(!node);
    CHECK(node.error().code == errc::not_authenticated);
    INFO(node.error().message);
    CHECK(mentions(node.error(), "refused our certificate (certificate expired: "));
  }
  SUBCASE("an expired certificate of theirs") {
    auto expired = expired_keys(files);
    listening_node elsewhere{expired};
    system_host here{expired};
    auto node = connect(here.get(), elsewhere.where, hang_limit);
    REQUIRE(!node);
    CHECK(node.error().code == errc::not_authenticated);
    CHECK(mentions(node.error(), "certificate has expired"));
  }
  SUBCASE("a node without TLS") {
    listening_node plain{std::nullopt};
    system_host here{files.keys()};
    auto node = connect(here.get(), plain.where, hang_limit);
    REQUIRE(!node);
    CHECK(node.error().code == errc::not_authenticated);
    CHECK(mentions(node.error(), "does not speak our version of TLS"));
  }
  SUBCASE("a node with TLS when we have no keys") {
    system_host here{std::nullopt};
    auto node = connect(here.get(), there.where, hang_limit);
    REQUIRE(!node);
    CHECK(node.error().code == errc::unreachable);
    CHECK(mentions(node.error(), "--insecure"));
  }
  SUBCASE("no listener") {
    endpoint nobody;
    {
      odd_server gone{[](const unique_fd&) {}};
      nobody = gone.where;
    }
    system_host here{files.keys()};
    auto node = connect(here.get(), nobody, hang_limit);
    REQUIRE(!node);
    CHECK(node.error().code == errc::connection_refused);
    CHECK(mentions(node.error(), "refused"));
    CHECK(mentions(node.error(), "is caf-node running there"));
  }
  SUBCASE("a peer that closes at once") {
    odd_server closing{[](const unique_fd&) {}};
    system_host here{files.keys()};
    auto node = connect(here.get(), closing.where, hang_limit);
    REQUIRE(!node);
    CHECK(node.error().code == errc::unreachable);
  }
  SUBCASE("a peer that sends nothing is given up at the limit") {
    std::promise<void> over;
    auto waits = over.get_future().share();
    odd_server silent{[waits](const unique_fd&) { waits.wait(); }};
    system_host here{files.keys()};
    auto node = connect(here.get(), silent.where, 200ms);
    over.set_value();
    REQUIRE(!node);
    CHECK(node.error().code == errc::unreachable);
    CHECK(mentions(node.error(), "sends nothing"));
  }
  SUBCASE("a peer that sends garbage") {
    odd_server babbling{[](const unique_fd& fd) {
      send_text(fd, "HTTP/1.1 400 Bad Request\r\n\r\n");
      is_closed_by_peer(fd);
    }};
    system_host here{files.keys()};
    auto node = connect(here.get(), babbling.where, hang_limit);
    REQUIRE(!node);
    CHECK(node.error().code == errc::not_authenticated);
  }
  SUBCASE("keys that cannot be read name their file") {
    auto broken = files.keys();
    broken.key = files.path / "absent.key";
    system_host here{broken};
    auto node = connect(here.get(), there.where, hang_limit);
    REQUIRE(!node);
    CHECK(node.error().code == errc::not_authenticated);
    CHECK(mentions(node.error(), broken.key.string()));
  }
}

TEST_CASE("a node rejects a foreign peer") {
  scratch files;
  auto keys = files.keys();
  listening_node there{keys};
  CHECK(is_let_in(there.where, keys));
  CHECK_FALSE(is_let_in(there.where, std::nullopt));
  CHECK_FALSE(is_let_in(there.where, files.keys("theirs")));
  CHECK_FALSE(is_let_in(there.where, expired_keys(files)));
  CHECK_FALSE(is_let_in(there.where, keys, TLS1_2_VERSION));
  auto talkative = tcp_connection(there.where);
  send_text(talkative, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(is_closed_by_peer(talkative));
}

TEST_CASE("a healthy connection survives while foreign peers connect and disconnect") {
  scratch files;
  auto keys = files.keys();
  auto theirs = files.keys("theirs");
  auto expired = expired_keys(files);
  listening_node there{keys};
  system_host here{keys};
  auto node = connect(here.get(), there.where, hang_limit);
  REQUIRE_MESSAGE(node, node.error().message);
  std::atomic<bool> lost = false;
  caf::actor_cast<caf::abstract_actor*>(*node)->attach_functor([&](const caf::error&) { lost = true; });

  std::atomic<bool> over = false;
  auto asking = std::thread{[&] {
    while (!over)
      CHECK(ask(here.get(), *node) == "here");
  }};
  std::vector<unique_fd> silent;
  for (auto round = 0; round < 20; ++round) {
    silent.push_back(tcp_connection(there.where));
    tcp_connection(there.where);
    send_text(tcp_connection(there.where), "garbage, and then the end");
    CHECK_FALSE(is_let_in(there.where, std::nullopt));
    CHECK_FALSE(is_let_in(there.where, round % 2 == 0 ? theirs : expired));
  }
  over = true;
  asking.join();
  CHECK(ask(here.get(), *node) == "here");
  CHECK_FALSE(lost);
}

TEST_CASE("many peers connect at once") {
  scratch files;
  auto keys = files.keys();
  listening_node there{keys};
  SUBCASE("from many actor systems") {
    std::vector<std::unique_ptr<system_host>> hosts;
    for (auto i = 0; i < 32; ++i)
      hosts.push_back(std::make_unique<system_host>(keys));
    std::vector<std::thread> threads;
    std::atomic<int> answers = 0;
    for (auto& host : hosts)
      threads.emplace_back([&] {
        if (auto node = connect(host->get(), there.where, hang_limit); node && ask(host->get(), *node) == "here")
          ++answers;
      });
    for (auto& thread : threads)
      thread.join();
    CHECK(answers == 32);
  }
  SUBCASE("from one") {
    system_host here{keys};
    std::vector<std::thread> threads;
    std::atomic<int> answers = 0;
    for (auto i = 0; i < 32; ++i)
      threads.emplace_back([&] {
        if (auto node = connect(here.get(), there.where, hang_limit); node && ask(here.get(), *node) == "here")
          ++answers;
      });
    for (auto& thread : threads)
      thread.join();
    CHECK(answers == 32);
  }
}

TEST_CASE("large messages pass intact in both directions at the same time") {
  scratch files;
  auto keys = files.keys();
  system_host there{keys};
  system_host here{keys};
  auto echo = there.get().spawn(echoing_node);
  auto port = publish(echo, {"127.0.0.1", 0});
  REQUIRE(port);
  auto node = connect(here.get(), {"127.0.0.1", *port}, hang_limit);
  REQUIRE_MESSAGE(node, node.error().message);
  std::vector<std::thread> threads;
  std::atomic<int> equal = 0;
  for (auto sender = 0u; sender < 4; ++sender)
    threads.emplace_back([&, sender] {
      auto self = caf::scoped_actor{here.get()};
      for (auto round = 0u; round < 3; ++round) {
        auto text = varied_text(5'000'000 + sender * 1001 + round, sender * 3 + round);
        self->request(*node, hang_limit, join_request{{}, {}, text})
            .receive([&](const join_challenge& answer) { equal += answer.nonce == text ? 1 : 0; },
                     [](const caf::error& reason) { FAIL_CHECK(caf::to_string(reason)); });
      }
    });
  for (auto& thread : threads)
    thread.join();
  CHECK(equal == 12);
  // Sizes around that of a record.
  auto self = caf::scoped_actor{here.get()};
  auto check_echo = [&](std::size_t size) {
    auto text = varied_text(size, size);
    self->request(*node, hang_limit, join_request{{}, {}, text})
        .receive([&](const join_challenge& answer) { CHECK(answer.nonce == text); },
                 [](const caf::error& reason) { FAIL_CHECK(caf::to_string(reason)); });
  };
  for (auto size : {0u, 1u, 16'383u, 16'384u, 16'385u, 32'768u})
    check_echo(size);
  // Fills all buffers repeatedly, with nothing behind it that could restart a stalled connection.
  CHECK(shrink_send_buffers() >= 2);
  check_echo(3'000'003);
  caf::anon_send_exit(echo, caf::exit_reason::user_shutdown);
}

TEST_CASE("the end of a peer is reported") {
  scratch files;
  auto keys = files.keys();
  auto there = std::make_unique<listening_node>(keys);
  system_host here{keys};
  auto node = connect(here.get(), there->where, hang_limit);
  REQUIRE_MESSAGE(node, node.error().message);
  auto ended = std::make_shared<std::promise<void>>();
  caf::actor_cast<caf::abstract_actor*>(*node)->attach_functor([ended](const caf::error&) { ended->set_value(); });
  there.reset();
  CHECK(ended->get_future().wait_for(hang_limit) == std::future_status::ready);
}

TEST_CASE(
    "a peer that never presents a certificate is dropped after a while, and waiting for it costs no processor time") {
  scratch files;
  auto keys = files.keys();
  listening_node there{keys};
  system_host here{keys};
  auto node = connect(here.get(), there.where, hang_limit);
  REQUIRE_MESSAGE(node, node.error().message);
  auto silent = tcp_connection(there.where);
  auto halfway = tcp_connection(there.where);
  // The begin of a handshake record of 512 bytes.
  send_text(halfway, std::string{"\x16\x03\x01\x02\x00\x01", 6});
  auto began = std::chrono::steady_clock::now();
  auto used = cpu_seconds();
  CHECK(is_closed_by_peer(silent));
  CHECK(is_closed_by_peer(halfway));
  auto waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  // A spinning thread would use as much processor time as it waits.
  CHECK(cpu_seconds() - used < waited / 10);
  CHECK(ask(here.get(), *node) == "here");
}

TEST_CASE("the oldest of too many silent peers is dropped") {
  scratch files;
  listening_node there{files.keys()};
  std::vector<unique_fd> silent;
  // One more than a port keeps of an address.
  for (auto i = 0; i < 193; ++i)
    silent.push_back(tcp_connection(there.where));
  CHECK(is_closed_by_peer(silent.front()));
  auto waiting = pollfd{silent[1].get(), POLLIN, 0};
  CHECK(::poll(&waiting, 1, 0) == 0);
  CHECK(is_let_in(there.where, files.keys()));
}

TEST_CASE("unpublishing a port closes it and all pending connections") {
  scratch files;
  auto keys = files.keys();
  system_host there{keys};
  auto echo = there.get().spawn(echoing_node);
  auto port = publish(echo, {"127.0.0.1", 0});
  REQUIRE(port);
  auto silent = tcp_connection({"127.0.0.1", *port});
  unpublish(echo, *port);
  CHECK(is_closed_by_peer(silent));
  system_host here{keys};
  auto node = connect(here.get(), {"127.0.0.1", *port}, hang_limit);
  REQUIRE(!node);
  CHECK(node.error().code == errc::connection_refused);
  caf::anon_send_exit(echo, caf::exit_reason::user_shutdown);
}

TEST_CASE("an actor system may end at any time") {
  scratch files;
  auto keys = files.keys();
  auto there = std::make_unique<listening_node>(keys);
  auto here = std::make_unique<system_host>(keys);
  auto node = connect(here->get(), there->where, hang_limit);
  REQUIRE_MESSAGE(node, node.error().message);
  auto silent = tcp_connection(there->where);
  SUBCASE("the listening one first") {
    there.reset();
    CHECK(is_closed_by_peer(silent));
  }
  SUBCASE("the dialling one first") {
    *node = nullptr;
    here.reset();
  }
  SUBCASE("with more to send than a frozen peer accepts") {
    std::promise<void> thaw;
    auto frozen = thaw.get_future().share();
    there->multiplexer().dispatch([frozen] { frozen.wait(); });
    caf::anon_send(*node, join_request{{}, {}, varied_text(64'000'000, 1)});
    *node = nullptr;
    here.reset();
    thaw.set_value();
  }
  if (there) {
    system_host joiner{keys};
    CHECK_MESSAGE(connect(joiner.get(), there->where, hang_limit), "the remaining node continues");
  }
}

} // namespace troupe::runtime

#include "scratch_runs.hpp"

#include <arpa/inet.h>
#include <array>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

using namespace troupe::testing;

namespace {

/// A TCP connection of a program other than Troupe.
class plain_connection {
 public:
  explicit plain_connection(const std::string& address) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    auto colon = address.rfind(':');
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1))));
    ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &where.sin_addr);
    open_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0;
  }
  plain_connection(const plain_connection&) = delete;
  plain_connection& operator=(const plain_connection&) = delete;
  ~plain_connection() { ::close(fd_); }

  [[nodiscard]] bool open() const noexcept { return open_; }

  void send(const std::string& text) { (void)::send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }

  /// Whether the other end closes the connection, possibly after sending data.
  [[nodiscard]] bool is_closed() {
    auto end = std::chrono::steady_clock::now() + hang_limit;
    std::array<char, 256> ignored{};
    for (auto waiting = pollfd{fd_, POLLIN, 0}; std::chrono::steady_clock::now() < end;)
      if (::poll(&waiting, 1, 1000) > 0 && ::recv(fd_, ignored.data(), ignored.size(), 0) <= 0)
        return true;
    return false;
  }

 private:
  int fd_;
  bool open_ = false;
};

void check_service(scratch_runs& here, const running_node& node, const std::string& name,
                   std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--nodes", node.address, "--workers", "2"});
  auto ran = here.run(here.charlm(name, more));
  INFO(ran.err);
  CHECK(ran.status == exit_status{0, {}});
}

} // namespace

TEST_CASE("a driver with other keys is rejected, and the node serves the next run") {
  scratch_runs here;
  auto node = here.start_node();
  auto ran =
      here.run(here.charlm("stranger", {"--nodes", node.address}), {{"TROUPE_KEYS", here.path("other").string()}});
  INFO(ran.err);
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, node.address));
  CHECK(contains(ran.err, "certificate"));
  CHECK(node.process.running());
  check_service(here, node, "known");
}

TEST_CASE("a node with TLS rejects a driver without it, and the other way round") {
  scratch_runs here;
  auto secure = here.start_node();
  auto plain = here.start_node({"--insecure", "--program-dir", here.programs()});
  CHECK(contains(plain.process.err(), "insecure"));

  auto without = here.run(here.charlm("without", {"--nodes", secure.address, "--insecure"}));
  INFO(without.err);
  CHECK(without.status == exit_status{1, {}});
  CHECK(contains(without.err, secure.address));
  CHECK(contains(without.err, "--insecure"));
  CHECK(secure.process.running());
  check_service(here, secure, "with");

  auto with = here.run(here.charlm("with-tls", {"--nodes", plain.address}));
  INFO(with.err);
  CHECK(with.status == exit_status{1, {}});
  CHECK(contains(with.err, plain.address));
  CHECK(plain.process.running());
  check_service(here, plain, "plain", {"--insecure"});
}

TEST_CASE("a node survives connections that send garbage or nothing") {
  scratch_runs here;
  auto node = here.start_node();
  plain_connection silent{node.address};
  plain_connection talkative{node.address};
  REQUIRE(silent.open());
  REQUIRE(talkative.open());
  talkative.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  check_service(here, node, "meanwhile");
  CHECK(talkative.is_closed());
  check_service(here, node, "afterwards");
}

TEST_CASE("an address other than loopback without cluster keys fails with the commands that make them") {
  scratch_runs here;
  for (const auto* address : {"0.0.0.0:0", "192.0.2.1:0", "[::]:0"}) {
    auto ran = here.run({caf_node_program(), "--listen", address});
    INFO(ran.err);
    CHECK(ran.status == exit_status{1, {}});
    CHECK(contains(ran.err, "troupe certs init"));
    CHECK(contains(ran.err, "troupe certs issue"));
  }
  auto ran = here.run(here.charlm("far", {"--nodes", "192.0.2.1:4000"}));
  INFO(ran.err);
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "troupe certs init"));
  CHECK(contains(ran.err, "troupe certs issue"));
}

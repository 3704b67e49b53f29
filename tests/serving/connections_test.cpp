#include "running_server.hpp"

#include <troupe/runtime/keys.hpp>

#include <doctest/doctest.h>
#include <processes.hpp>

#include <chrono>
#include <cstdio>
#include <memory>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

const std::string host = "Host: localhost\r\n";

} // namespace

TEST_CASE("what follows a request that is not whole is never read as another") {
  const running_server here;
  const auto hidden = http_request("POST", "/v1/reload");
  for (const auto& request :
       {"POST /v1/predict HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}X\r\n0\r\n\r\n" + hidden,
        "POST /v1/predict HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n" + hidden,
        "POST /v1/predict HTTP/1.1\r\n" + host + "Content-Length : " + std::to_string(hidden.size()) + "\r\n\r\n" +
            hidden,
        "POST /v1/predict HTTP/1.1\r\n" + host + "\r\n" + hidden,
        "GET /healthz HTTP/1.1\r\n" + host + "A: b\nContent-Length: 3\r\n\r\n" + hidden}) {
    auto client = http_client{here.server.port()};
    REQUIRE(client.send(request));
    const auto found = client.receive();
    REQUIRE(found);
    CHECK_MESSAGE((found->status == 400 || found->status == 411), request);
    CHECK(found->headers.at("connection") == "close");
    CHECK(client.is_closed_by_peer());
  }
  CHECK(here.metric("troupe_serving_reloads_total") == 0);
}

TEST_CASE("headers that are not used change nothing") {
  const running_server here;
  for (const auto* value : {"bytes=0-3", "bytes=x", "bytes=5-2", "lines"}) {
    const auto found = http_exchange(
        here.server.port(), http_request("POST", "/v1/predict", R"({"inputs": [[1, 2]]})", {{"Range", value}}));
    CHECK(found.status == 200);
    CHECK(outputs_of(found).dump() == "[[3.0,2.0]]");
  }
}

TEST_CASE("without a token, pages of other sites are refused") {
  const running_server here;
  const auto ask = [&](const std::string& name, const std::string& value) {
    return http_exchange(here.server.port(), http_request("POST", "/v1/reload", {}, {{name, value}})).status;
  };
  CHECK(ask("Origin", "http://example.org") == 403);
  CHECK(ask("Origin", "null") == 403);
  CHECK(ask("Sec-Fetch-Site", "cross-site") == 403);
  CHECK(here.metric("troupe_serving_reloads_total") == 0);
  CHECK(ask("Origin", "http://localhost:3000") == 200);
}

TEST_CASE("a request line or head that comes slowly is answered with 408, and a silent connection is closed") {
  const running_server here{{.limits = {.head_timeout = 100ms, .idle_timeout = 100ms}}};
  for (const auto* part : {"G", "GET /healthz HTTP/1.1\r\nHost:"}) {
    auto client = http_client{here.server.port()};
    REQUIRE(client.send(part));
    const auto found = client.receive();
    REQUIRE(found);
    CHECK(found->status == 408);
    CHECK(client.is_closed_by_peer());
  }
  auto silent = http_client{here.server.port()};
  CHECK(silent.is_closed_by_peer());
  CHECK(becomes_true([&] { return here.metric("troupe_serving_connections") == 1; }));
}

TEST_CASE("a head that does not end keeps no place from those that wait") {
  const running_server here{{.limits = {.max_connections = 2, .receive_timeout = 60s, .head_timeout = 60s}}};
  std::vector<std::unique_ptr<http_client>> slow;
  for (auto i = 0; i < 2; ++i) {
    slow.push_back(std::make_unique<http_client>(here.server.port()));
    REQUIRE(slow.back()->send("GET /"));
  }
  CHECK(here.predict("[[1, 2]]").status == 200);
}

TEST_CASE("a crowd that is over closes no connection") {
  running_server here{{.limits = {.max_connections = 2}}};
  here.script.set_open(false);
  auto first = http_client{here.server.port()};
  REQUIRE(first.send(http_request("POST", "/v1/predict", R"({"inputs": [[1, 2]]})", {{"Connection", "close"}})));
  here.script.await_entered(1);
  // Busy as well: half of its body has come.
  auto second = http_client{here.server.port()};
  const auto request = running_server::predict_request("[[1, 2]]");
  REQUIRE(second.send(request.substr(0, request.size() - 3)));
  // Waits for the place of the first.
  auto third = http_client{here.server.port()};
  REQUIRE(third.send(http_request("GET", "/healthz")));
  here.script.set_open(true);
  CHECK(first.receive()->status == 200);
  CHECK(third.receive()->status == 200);
  REQUIRE(second.send(request.substr(request.size() - 3)));
  CHECK(second.receive()->status == 200);
  for (auto* each : {&second, &third})
    for (auto i = 0; i < 3; ++i)
      CHECK(each->exchange(http_request("GET", "/healthz")));
}

TEST_CASE("one source has no more connections than it may") {
  const running_server here{{.limits = {.max_source_connections = 2}}};
  auto first = http_client{here.server.port()};
  REQUIRE(first.exchange(http_request("GET", "/healthz")));
  {
    auto second = http_client{here.server.port()};
    REQUIRE(second.exchange(http_request("GET", "/healthz")));
    const auto refused = http_exchange(here.server.port(), {});
    CHECK(refused.status == 503);
    CHECK(message_of(refused).find("this address has as many connections") == 0);
  }
  CHECK(becomes_true([&] {
    auto again = http_client{here.server.port()};
    const auto found = again.exchange(http_request("GET", "/healthz"));
    return found && found->status == 200;
  }));
}

TEST_CASE("the bytes that all requests hold are bounded: bodies, rows and responses") {
  running_server here{{.limits = {.max_body_bytes = 4096, .max_total_body_bytes = 6000}}};
  auto holding = http_client{here.server.port()};
  REQUIRE(
      holding.send("POST /v1/predict HTTP/1.1\r\n" + host + "Content-Length: 4096\r\nExpect: 100-continue\r\n\r\n"));
  REQUIRE(holding.receive()->status == 100);
  auto busy = http_client{here.server.port()};
  REQUIRE(busy.send("POST /v1/predict HTTP/1.1\r\n" + host + "Content-Length: 4000\r\n\r\n"));
  CHECK(busy.receive()->status == 503);
  CHECK(here.predict("[[1, 2]]").status == 200);
  // 150 rows take more than the server may hold at all, with what they are read into and their response.
  std::string rows = "[[1,2]";
  for (auto i = 1; i < 150; ++i)
    rows += ",[1,2]";
  holding.end_sending();
  CHECK(holding.receive()->status == 400);
  CHECK(becomes_true([&] { return here.predict(rows + "]").status == 413; }));
  CHECK(here.predict("[[1, 2]]").status == 200);
}

TEST_CASE("a client that does not read its responses is left after a while") {
  running_server here{{.limits = {.send_timeout = 100ms}}};
  const auto client = http_client{here.server.port()};
  // Requests whose responses fill all buffers of the sockets.
  std::string rows = "[[1,2]";
  for (auto i = 1; i < 1000; ++i)
    rows += ",[1,2]";
  const auto request = running_server::predict_request(rows + "]");
  std::thread sending{[&] {
    while (client.send(request)) {
    }
  }};
  // The sender ends once its connection was closed.
  sending.join();
  CHECK(becomes_true([&] { return here.metric("troupe_serving_connections") == 1; }));
}

TEST_CASE("a server listens at IPv6") {
  const auto probe = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const auto has_v6 = probe >= 0 && ::bind(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::close(probe);
  if (!has_v6) {
    std::puts("SKIP: this machine has no ::1");
    return;
  }
  const running_server here{{.listen = {.host = "::1"}}};
  CHECK(here.server.url().starts_with("http://[::1]:"));
  const auto client = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(client >= 0);
  address.sin6_port = htons(here.server.port());
  REQUIRE(::connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  const auto request = http_request("GET", "/v1/model", {}, {{"Host", "[::1]"}, {"Connection", "close"}});
  REQUIRE(::send(client, request.data(), request.size(), MSG_NOSIGNAL) == std::ssize(request));
  char text[64] = {};
  REQUIRE(::recv(client, text, 15, MSG_WAITALL) == 15);
  CHECK(std::string{text} == "HTTP/1.1 200 OK");
  ::close(client);
}

TEST_CASE("clients that are silent, in TLS's handshake too, do not hold up a stop") {
  const scratch_directory scratch;
  value_or_throw(runtime::init_cluster_ca(scratch.path()));
  const auto files = value_or_throw(runtime::issue_certificate(scratch.path(), {.host = "localhost"}));
  running_server here{{.listen = {.certificate = files.certificate, .key = files.key}}};
  const auto silent = http_client{here.server.port()};
  auto begun = http_client{here.server.port()};
  REQUIRE(begun.send("\x16\x03\x01"));
  CHECK(here.server.stop(30min));
  CHECK(begun.is_closed_by_peer());

  running_server plain;
  auto part = http_client{plain.server.port()};
  REQUIRE(part.send("GET /healthz"));
  CHECK(plain.server.stop(30min));
  CHECK(part.is_closed_by_peer());
}

TEST_CASE("the greatest times that a configuration can have are long ones") {
  running_server here{{.limits = {.receive_timeout = std::chrono::milliseconds::max(),
                                  .head_timeout = std::chrono::milliseconds::max(),
                                  .predict_timeout = std::chrono::milliseconds::max(),
                                  .send_timeout = std::chrono::milliseconds::max(),
                                  .idle_timeout = std::chrono::milliseconds::max()}}};
  CHECK(here.predict("[[1, 2]]").status == 200);
  CHECK(here.server.stop(std::chrono::milliseconds::max()));
}

TEST_CASE("requests that are refused count for the rate, too") {
  const running_server here{
      {.listen = {.token = "0123456789abcdef"}, .limits = {.requests_per_second = 0.001, .burst = 3}}};
  CHECK(here.predict("[[1, 2]]").status == 401);
  CHECK(here.get("/nothing").status == 404);
  CHECK(here.get("/v1/predict").status == 405);
  CHECK(here.predict("[[1, 2]]").status == 429);
  CHECK(here.get("/healthz").status == 200);
}

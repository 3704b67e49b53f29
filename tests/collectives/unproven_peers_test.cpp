#include <troupe/collectives/unproven_peers.hpp>

#include <doctest/doctest.h>

#include <arpa/inet.h>
#include <array>
#include <netinet/in.h>
#include <string>
#include <vector>

namespace troupe::collectives {

namespace {

using namespace std::chrono_literals;

const auto start = unproven_peers::time_point{} + 1h;

peer_source from(const std::string& host) {
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  if (::inet_pton(AF_INET6, host.c_str(), &six.sin6_addr) == 1)
    return peer_source{reinterpret_cast<const sockaddr*>(&six)};
  sockaddr_in four{};
  four.sin_family = AF_INET;
  REQUIRE(::inet_pton(AF_INET, host.c_str(), &four.sin_addr) == 1);
  return peer_source{reinterpret_cast<const sockaddr*>(&four)};
}

} // namespace

TEST_CASE("a source is an address without its port") {
  CHECK(from("10.0.0.7") == from("10.0.0.7"));
  CHECK(from("10.0.0.7") != from("10.0.0.8"));
  CHECK(from("::ffff:10.0.0.7") == from("10.0.0.7"));
  CHECK(from("fd00::7") != from("fd00::8"));
}

TEST_CASE("a source that has too many connections gives up its oldest one") {
  auto peers = unproven_peers{{.in_all = 10, .of_source = 2, .time = 5s}};
  const auto other = peers.admit(from("10.0.0.1"), start);
  const auto first = peers.admit(from("10.0.0.2"), start);
  const auto second = peers.admit(from("10.0.0.2"), start);
  CHECK_FALSE(second.crowded_out);
  const auto third = peers.admit(from("10.0.0.2"), start);
  REQUIRE(third.crowded_out);
  CHECK(*third.crowded_out == first.added);
  const auto fourth = peers.admit(from("10.0.0.2"), start);
  REQUIRE(fourth.crowded_out);
  CHECK(*fourth.crowded_out == second.added);
  CHECK(peers.size() == 3);
  CHECK(other.added != fourth.added);
}

TEST_CASE("if there are too many in all, the oldest one of the busiest source goes") {
  auto peers = unproven_peers{{.in_all = 4, .of_source = 4, .time = 5s}};
  // The honest one came first, and keeps its place.
  const auto honest = peers.admit(from("10.0.0.1"), start);
  const auto flood = peers.admit(from("10.0.0.2"), start);
  for (auto i = 0; i < 2; ++i)
    CHECK_FALSE(peers.admit(from("10.0.0.2"), start).crowded_out);
  const auto next = peers.admit(from("10.0.0.3"), start);
  REQUIRE(next.crowded_out);
  CHECK(*next.crowded_out == flood.added);
  for (auto i = 0; i < 100; ++i) {
    const auto result = peers.admit(from("10.0.0.2"), start);
    REQUIRE(result.crowded_out);
    CHECK(*result.crowded_out != honest.added);
    CHECK(*result.crowded_out != next.added);
    CHECK(peers.size() == 4);
  }
}

TEST_CASE("many sources with a connection each are bounded, too") {
  auto peers = unproven_peers{{.in_all = 8, .of_source = 4, .time = 5s}};
  std::vector<unproven_peers::ticket> admitted;
  for (auto i = 0; i < 200; ++i) {
    const auto result = peers.admit(from("10.0.1." + std::to_string(i)), start);
    if (admitted.size() >= 8) {
      REQUIRE(result.crowded_out);
      CHECK(*result.crowded_out == admitted[admitted.size() - 8]);
    }
    admitted.push_back(result.added);
    CHECK(peers.size() <= 8);
  }
}

TEST_CASE("whoever has proved itself no longer counts") {
  auto peers = unproven_peers{{.in_all = 2, .of_source = 2, .time = 5s}};
  const auto first = peers.admit(from("10.0.0.1"), start);
  const auto second = peers.admit(from("10.0.0.1"), start);
  peers.remove(first.added);
  CHECK_FALSE(peers.admit(from("10.0.0.1"), start).crowded_out);
  // Repeated, and of one that had to go.
  peers.remove(first.added);
  CHECK(peers.admit(from("10.0.0.1"), start).crowded_out == second.added);
  peers.remove(second.added);
  CHECK(peers.size() == 2);
}

TEST_CASE("the time to prove itself ends for each in the order of arrival") {
  auto peers = unproven_peers{{.in_all = 8, .of_source = 8, .time = 5s}};
  CHECK_FALSE(peers.next_deadline());
  const auto first = peers.admit(from("10.0.0.1"), start);
  const auto second = peers.admit(from("10.0.0.2"), start + 1s);
  const auto third = peers.admit(from("10.0.0.1"), start + 2s);
  REQUIRE(peers.next_deadline());
  CHECK(*peers.next_deadline() == start + 5s);
  CHECK(peers.take_late(start + 4999ms).empty());
  peers.remove(second.added);
  CHECK(peers.take_late(start + 6s) == std::vector{first.added});
  CHECK(*peers.next_deadline() == start + 7s);
  CHECK(peers.take_late(start + 7s) == std::vector{third.added});
  CHECK(peers.size() == 0);
}

TEST_CASE("a listener without descriptors takes one from the busiest source") {
  auto peers = unproven_peers{{.in_all = 8, .of_source = 8, .time = 5s}};
  CHECK_FALSE(peers.take_oldest());
  const auto honest = peers.admit(from("10.0.0.1"), start);
  const auto first = peers.admit(from("10.0.0.2"), start);
  const auto second = peers.admit(from("10.0.0.2"), start);
  CHECK(peers.take_oldest() == first.added);
  CHECK(peers.take_oldest() == honest.added);
  CHECK(peers.take_oldest() == second.added);
  CHECK_FALSE(peers.take_oldest());
}

} // namespace troupe::collectives

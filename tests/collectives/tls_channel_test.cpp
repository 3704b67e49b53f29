#include "tcp/channel.hpp"

#include <algorithm>
#include <array>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <random>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::tcp;

namespace {

using bytes = std::vector<std::byte>;

bytes from_hex(const std::string& text) {
  bytes result;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    result.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return result;
}

traffic_secret secret_from(const std::string& text) {
  traffic_secret result;
  std::ranges::copy(from_hex(text), result.begin());
  return result;
}

iovec all_of(bytes& x) {
  return {x.data(), x.size()};
}

bytes seal(record_key& key, bytes content) {
  bytes result(content.size() + record_overhead_bytes);
  const std::array buffers{all_of(content)};
  result.resize(key.seal(record_content::application_data, buffers, result.data()));
  return result;
}

bytes some_bytes(std::size_t size, std::uint32_t seed) {
  std::mt19937 random{seed};
  bytes result(size);
  for (auto& x : result)
    x = static_cast<std::byte>(random());
  return result;
}

struct pair_of_channels {
  std::unique_ptr<tls_channel> client, server;
};

pair_of_channels connect(const session_key& of_client, const session_key& of_server, const std::string& name_of_client,
                         std::uint64_t records_per_key) {
  std::array<int, 2> sockets{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets.data()) == 0);
  return {
      value_or_throw(
          make_tls_channel(unique_fd{sockets[0]}, tls_side::client, of_client, name_of_client, records_per_key)),
      value_or_throw(make_tls_channel(unique_fd{sockets[1]}, tls_side::server, of_server, "a name", records_per_key))};
}

/// Whether both sides complete the handshake.
bool shake_hands(pair_of_channels& x) {
  for (int i = 0; i < 20; ++i) {
    const auto left = x.client->shake_hands();
    if (left == tls_session::state::failed)
      return false;
    const auto right = x.server->shake_hands();
    if (right == tls_session::state::failed)
      return false;
    if (left == tls_session::state::done && right == tls_session::state::done)
      return true;
  }
  return false;
}

session_key some_key(std::byte first) {
  session_key result{};
  result.fill(std::byte{9});
  result[0] = first;
  return result;
}

} // namespace

TEST_CASE("a record has the bytes of RFC 8448's example, section 3") {
  record_key key{secret_from("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5")};
  bytes content(50);
  for (std::size_t i = 0; i < content.size(); ++i)
    content[i] = static_cast<std::byte>(i);
  CHECK(seal(key, content) ==
        from_hex("1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b39"
                 "5bd54a9a20441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4"));
}

TEST_CASE("records of all sizes are opened in order, and by nobody who changes, repeats or skips one") {
  const auto secret = secret_from(std::string(64, '7'));
  for (std::size_t size : {0u, 1u, 15u, 16u, 100u, 16'384u}) {
    record_key sender{secret}, receiver{secret};
    for (int i = 0; i < 3; ++i) {
      const auto content = some_bytes(size, 3);
      const auto record = seal(sender, content);
      REQUIRE(record_bytes_of(record) == record.size());
      REQUIRE(content_bytes_of(record.size()) == size);
      // Into two places.
      bytes first(size / 3), second(size - size / 3 + 5);
      const std::array places{all_of(first), all_of(second)};
      const auto type = receiver.open(record, places);
      REQUIRE(type);
      CHECK(*type == record_content::application_data);
      first.insert(first.end(), second.begin(), second.end() - 5);
      CHECK(first == content);
    }
  }
  for (std::size_t wrong = 0; wrong < 10 + record_overhead_bytes; ++wrong) {
    record_key sender{secret}, receiver{secret};
    auto record = seal(sender, some_bytes(10, 4));
    record[wrong] ^= std::byte{1};
    bytes place(10);
    const std::array places{all_of(place)};
    CHECK(!receiver.open(record, places));
  }
  record_key sender{secret}, receiver{secret};
  const auto one = seal(sender, some_bytes(10, 5)), two = seal(sender, some_bytes(10, 6));
  bytes place(10);
  const std::array places{all_of(place)};
  CHECK(receiver.open(one, places));
  CHECK(!receiver.open(one, places));
  record_key late{secret};
  CHECK(!late.open(two, places));
}

TEST_CASE("headers that start no record are recognized") {
  const auto size_of = [](const std::string& text) { return record_bytes_of(from_hex(text)); };
  CHECK(size_of("1703034011") == 16'401 + 5);
  CHECK(size_of("1703034012") == 0);
  CHECK(size_of("1703030010") == 0);
  CHECK(size_of("1703030011") == 22);
  CHECK(size_of("1603030043") == 0);
  CHECK(size_of("1703010043") == 0);
  CHECK(size_of("474554202f") == 0);
}

TEST_CASE("a channel carries everything in both directions, also when keys change all the time") {
  for (auto records_per_key : {record_key::limit, std::uint64_t{1}, std::uint64_t{7}}) {
    auto both = connect(some_key({}), some_key({}), "a name", records_per_key);
    REQUIRE(shake_hands(both));
    const auto content = some_bytes(3'000'000, 8);
    // The client sends, the server answers with the same.
    bytes received(content.size()), answered(content.size());
    std::size_t sent = 0, arrived = 0, returned = 0, back = 0;
    std::mt19937 random{4};
    const auto write = [&](tls_channel& by, const bytes& data, std::size_t& done, std::size_t end) {
      const auto part = std::min<std::size_t>(end - done, random() % 60'000);
      const auto cut = part / 3;
      auto* from = const_cast<std::byte*>(data.data()) + done;
      const std::array<iovec, 2> buffers{{{from, cut}, {from + cut, part - cut}}};
      done += by.write(buffers).bytes;
      return by.flush().after != transferred::state::closed;
    };
    const auto read = [&](tls_channel& by, bytes& data, std::size_t& done) {
      const auto part = std::min<std::size_t>(data.size() - done, 1 + random() % 60'000);
      const auto cut = part / 2;
      const std::array<iovec, 2> buffers{{{data.data() + done, cut}, {data.data() + done + cut, part - cut}}};
      const auto got = by.read(buffers);
      done += got.bytes;
      return got.after != transferred::state::closed;
    };
    auto is_well = true;
    for (int i = 0; i < 1'000'000 && is_well && back != content.size(); ++i)
      is_well = write(*both.client, content, sent, content.size()) && read(*both.server, received, arrived) &&
                write(*both.server, received, returned, arrived) && read(*both.client, answered, back);
    CHECK(is_well);
    CHECK(received == content);
    CHECK(answered == content);
  }
}

TEST_CASE("both ends of a session know the same binding, and another session with the same key has another") {
  auto first = connect(some_key({}), some_key({}), "a name", record_key::limit);
  auto second = connect(some_key({}), some_key({}), "a name", record_key::limit);
  REQUIRE(shake_hands(first));
  REQUIRE(shake_hands(second));
  CHECK(first.client->binding() == first.server->binding());
  CHECK(second.client->binding() == second.server->binding());
  CHECK(first.client->binding() != second.client->binding());
  CHECK(first.client->binding() != session_binding{});
}

TEST_CASE("a peer with another key or another name does not get through the handshake") {
  auto other_key = connect(some_key({}), some_key(std::byte{1}), "a name", record_key::limit);
  CHECK(!shake_hands(other_key));
  auto other_name = connect(some_key({}), some_key({}), "b name", record_key::limit);
  CHECK(!shake_hands(other_name));
}

TEST_CASE("bytes that are changed on the way, or come from somebody else, end the connection") {
  for (const std::string what : {"1703030020", "474554202f20485454502f312e310d0a", "15030300020100"}) {
    auto both = connect(some_key({}), some_key({}), "a name", record_key::limit);
    REQUIRE(shake_hands(both));
    auto strange = from_hex(what);
    strange.resize(64);
    REQUIRE(::send(both.client->fd(), strange.data(), strange.size(), MSG_NOSIGNAL) == 64);
    bytes place(100);
    const std::array places{all_of(place)};
    const auto got = both.server->read(places);
    CHECK(got.bytes == 0);
    CHECK(got.after == transferred::state::closed);
    CHECK(!both.server->channel::why().empty());
  }
}

#include "tcp/address.hpp"
#include "tcp/handshake.hpp"
#include "tcp_group.hpp"

#include <arpa/inet.h>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <doctest/doctest.h>
#include <filesystem>
#include <latch>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sys/socket.h>
#include <sys/wait.h>

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace std::chrono_literals;

namespace {

using clock_type = std::chrono::steady_clock;

error error_of(const expected<void>& result) {
  return result ? error{} : result.error();
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

tcp_options options_for(std::uint32_t rank, std::uint32_t world_size) {
  tcp_options result;
  result.rank = rank_id{rank};
  result.world_size = world_size;
  result.generation = generation_id{3};
  result.secret = some_secret();
  result.tag = "run 1";
  result.deadline = 60s;
  return result;
}

/// The port in a blob, which strangers would learn by scanning.
std::uint16_t port_of(const std::string& blob) {
  std::uint16_t port = 0;
  std::memcpy(&port, blob.data() + 5, sizeof(port));
  return ntohs(port);
}

/// A connection of a stranger.
unique_fd dial(std::uint16_t port) {
  unique_fd result{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  REQUIRE(result);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(port);
  if (::connect(result.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0)
    result.reset();
  return result;
}

/// Ends a connection so that the other side's next call fails.
void reset_connection(unique_fd socket) {
  const linger at_once{1, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

void send_all(const unique_fd& socket, std::span<const std::byte> bytes) {
  static_cast<void>(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

/// Fewer than `size_bytes` if the connection ends.
std::vector<std::byte> read_some(const unique_fd& socket, std::size_t size_bytes) {
  std::vector<std::byte> result;
  while (result.size() < size_bytes) {
    std::array<std::byte, 256> buffer;
    const auto got = ::recv(socket.get(), buffer.data(), std::min(buffer.size(), size_bytes - result.size()), 0);
    if (got <= 0)
      break;
    result.insert(result.end(), buffer.begin(), buffer.begin() + got);
  }
  return result;
}

/// The forming of a group in which ranks differ in their options, come late or stay away.
struct forming {
  explicit forming(std::uint32_t world_size) : exchange(world_size) {
    for (std::uint32_t rank = 0; rank < world_size; ++rank)
      options.push_back(options_for(rank, world_size));
  }

  /// Called by each rank with the ports of all, between the exchange and connecting. False: the rank stays away.
  std::function<bool(std::uint32_t rank, const std::vector<std::uint16_t>& ports)> between =
      [](std::uint32_t, const std::vector<std::uint16_t>&) { return true; };

  void run() {
    const auto world_size = static_cast<std::uint32_t>(options.size());
    members.resize(world_size);
    errors.assign(world_size, {});
    reports.assign(world_size, {});
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < world_size; ++rank)
      threads.emplace_back([this, rank] {
        options[rank].report = [this, rank](std::string_view line) { reports[rank] = line; };
        auto made = make_tcp_communicator(options[rank], [&](std::string mine) -> expected<std::vector<std::string>> {
          auto all = exchange.exchange(rank, std::move(mine));
          std::vector<std::uint16_t> ports;
          for (const auto& x : all)
            ports.push_back(port_of(x));
          if (!between(rank, ports))
            return fail(errc::stopped, "stays away");
          return all;
        });
        if (made)
          members[rank] = std::move(*made);
        else
          errors[rank] = made.error();
      });
    for (auto& x : threads)
      x.join();
  }

  bool works() {
    std::vector<std::thread> threads;
    std::atomic<std::uint32_t> good = 0;
    for (auto& x : members)
      threads.emplace_back([&] {
        if (x && x->barrier())
          ++good;
      });
    for (auto& x : threads)
      x.join();
    return good == members.size();
  }

  rendezvous<std::string> exchange;
  std::vector<tcp_options> options;
  std::vector<std::unique_ptr<communicator>> members;
  std::vector<error> errors;
  std::vector<std::string> reports;
};

std::size_t open_descriptors() {
  std::size_t result = 0;
  for ([[maybe_unused]] const auto& x : std::filesystem::directory_iterator{"/proc/self/fd"})
    ++result;
  return result;
}

std::vector<bool> modes() {
  return {false, true};
}

} // namespace

// -- forming
// -----------------------------------------------------------------------------------------------------------

TEST_CASE("groups of any size form, work, and close their descriptors") {
  const auto before = open_descriptors();
  for (auto encrypted : modes())
    for (std::uint32_t world_size : {1u, 2u, 3u, 7u}) {
      forming group{world_size};
      for (auto& x : group.options)
        x.encrypted = encrypted;
      group.run();
      for (const auto& x : group.errors)
        CHECK(x == error{});
      CHECK(group.works());
      for (const auto& x : group.reports)
        CHECK(x.empty());
    }
  CHECK(open_descriptors() == before);
}

TEST_CASE("a peer that stays away is named, with its address, and nobody else is") {
  forming group{4};
  for (auto& x : group.options)
    x.connect_deadline = 20s;
  group.between = [](std::uint32_t rank, const auto&) { return rank != 1; };
  const auto begun = clock_type::now();
  // Rank 0 is dialled by the others and cannot know that rank 1 has gone before its deadline.
  group.options[0].connect_deadline = 1500ms;
  group.run();
  CHECK(clock_type::now() - begun < 15s);
  CHECK(group.errors[1].code == errc::stopped);
  for (std::uint32_t rank : {0u, 2u, 3u}) {
    const auto& x = group.errors[rank];
    INFO(x.message);
    CHECK(x.code == errc::unreachable);
    CHECK(mentions(x.message, "rank 1 at 127.0.0.1:"));
    for (std::uint32_t other : {0u, 2u, 3u})
      CHECK(!mentions(x.message, "; rank " + std::to_string(other)));
  }
}

TEST_CASE("a peer whose host does not answer is given up before the deadline, and reported") {
  // Nobody accepts, and the queue is full: the system drops what else comes, as a firewall does.
  unique_fd deaf{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  REQUIRE(deaf.get() >= 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(deaf.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0);
  socklen_t size = sizeof(at);
  REQUIRE(::getsockname(deaf.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
  REQUIRE(::listen(deaf.get(), 0) == 0);
  std::vector<unique_fd> queue;
  for (int i = 0; i < 4; ++i) {
    queue.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    std::ignore = ::connect(queue.back().get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at));
  }
  auto options = options_for(1, 2);
  options.connect_deadline = 60s;
  options.answer_deadline = 500ms;
  std::vector<rank_id> unreachable;
  options.report_unreachable = [&](const std::vector<rank_id>& ranks) { unreachable = ranks; };
  const auto made = make_tcp_communicator(options, [&](std::string mine) -> expected<std::vector<std::string>> {
    const tcp::address where{reinterpret_cast<const sockaddr*>(&at), sizeof(at)};
    return std::vector{tcp::encode(options_for(0, 2), where), std::move(mine)};
  });
  REQUIRE(!made);
  INFO(made.error().message);
  CHECK(made.error().code == errc::unreachable);
  CHECK(mentions(made.error().message, "rank 0 at 127.0.0.1:"));
  CHECK(unreachable == std::vector{rank_id{0}});
}

TEST_CASE("an address takes 11 bytes, or 23, and only its own group reads it") {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(4711);
  at.sin_addr.s_addr = htonl(0x0a000007);
  sockaddr_in6 at6{};
  at6.sin6_family = AF_INET6;
  at6.sin6_port = htons(4712);
  at6.sin6_addr = in6addr_loopback;
  const auto mine = options_for(2, 4);
  const auto blob = tcp::encode(mine, {reinterpret_cast<const sockaddr*>(&at), sizeof(at)});
  const auto blob6 = tcp::encode(mine, {reinterpret_cast<const sockaddr*>(&at6), sizeof(at6)});
  CHECK(blob.size() == 11);
  CHECK(blob6.size() == 23);
  CHECK(to_string(value_or_throw(tcp::decode(options_for(0, 4), 2, blob))) == "10.0.0.7:4711");
  CHECK(to_string(value_or_throw(tcp::decode(options_for(0, 4), 2, blob6))) == "[::1]:4712");
  auto code = [](const tcp_options& options, std::uint32_t peer, const std::string& text) {
    const auto read = tcp::decode(options, peer, text);
    return read ? errc::none : read.error().code;
  };
  auto later = options_for(0, 4);
  later.generation = generation_id{4};
  CHECK(code(later, 2, blob) == errc::mismatch);
  CHECK(code(options_for(0, 5), 2, blob) == errc::mismatch);
  CHECK(code(options_for(0, 4), 1, blob) == errc::mismatch);
  auto clear = options_for(0, 4);
  clear.encrypted = false;
  CHECK(mentions(tcp::decode(clear, 2, blob).error().message, "rank 2 encrypts its messages"));
  for (const auto& whole : {blob, blob6}) {
    for (std::size_t size = 0; size < whole.size(); ++size)
      CHECK(code(options_for(0, 4), 2, whole.substr(0, size)) == errc::mismatch);
    CHECK(code(options_for(0, 4), 2, whole + '\0') == errc::mismatch);
  }
  auto other_format = blob;
  other_format[0] ^= 0x10;
  CHECK(code(options_for(0, 4), 2, other_format) == errc::mismatch);
}

TEST_CASE("a peer that comes late is waited for") {
  for (auto late : {0u, 2u}) {
    forming group{3};
    group.between = [late](std::uint32_t rank, const auto&) {
      if (rank == late)
        std::this_thread::sleep_for(300ms);
      return true;
    };
    group.run();
    for (const auto& x : group.errors)
      CHECK(x == error{});
    CHECK(group.works());
  }
}

TEST_CASE("a peer with another secret, run or tag gets in nowhere, and both sides learn why") {
  for (int what = 0; what < 2; ++what) {
    forming group{2};
    for (auto& x : group.options)
      x.connect_deadline = 700ms;
    if (what == 0)
      group.options[1].secret = some_secret(8);
    else
      group.options[1].tag = "run 2";
    group.run();
    for (const auto& x : group.errors) {
      INFO(x.message);
      CHECK(x.code == errc::unreachable);
      CHECK(mentions(x.message, what == 0 ? "does not know the run's secret" : "belongs to another run or group"));
    }
  }
}

TEST_CASE("a peer with another generation or that does not encrypt is rejected before anybody connects") {
  for (int what = 0; what < 2; ++what) {
    forming group{2};
    if (what == 0)
      group.options[1].generation = generation_id{2};
    else
      group.options[1].encrypted = false;
    group.run();
    for (const auto& x : group.errors)
      CHECK(x.code == errc::mismatch);
  }
}

TEST_CASE("the port is taken from the range, and a range that is used up is named") {
  forming group{3};
  for (auto& x : group.options)
    x.ports = port_range{28'400, 28'402};
  std::vector<std::uint16_t> seen;
  group.between = [&](std::uint32_t rank, const std::vector<std::uint16_t>& ports) {
    if (rank == 0)
      seen = ports;
    return true;
  };
  group.run();
  if (group.errors[0].code == errc::none) {
    for (auto port : seen)
      CHECK((port >= 28'400 && port <= 28'402));
    CHECK(group.works());
  }
  auto options = options_for(0, 1);
  const unique_fd other{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(other.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0);
  REQUIRE(::listen(other.get(), 1) == 0);
  socklen_t size = sizeof(at);
  ::getsockname(other.get(), reinterpret_cast<sockaddr*>(&at), &size);
  options.ports = port_range{ntohs(at.sin_port), ntohs(at.sin_port)};
  const auto made = make_tcp_communicator(
      options, [](std::string mine) { return expected<std::vector<std::string>>{{std::move(mine)}}; });
  REQUIRE(!made);
  CHECK(made.error().code == errc::unreachable);
  INFO(made.error().message);
  CHECK(mentions(made.error().message, to_string(*options.ports)));
  CHECK(mentions(made.error().message, "two for each of its workers"));
}

// -- attacks on the port
// -------------------------------------------------------------------------------------------------

namespace {

/// Forms a group of three while `attack` works on the port of rank 0, which dials nobody. The ranks that dial it come
/// after the attack has begun, and while it goes on.
void attacked(bool encrypted, const std::function<void(std::uint16_t, const std::atomic<bool>&)>& attack) {
  forming group{3};
  for (auto& x : group.options)
    x.encrypted = encrypted;
  std::atomic<bool> is_over = false;
  std::uint16_t port_of_first = 0;
  std::latch has_begun{1};
  std::thread attacker;
  group.between = [&](std::uint32_t rank, const std::vector<std::uint16_t>& ports) {
    if (rank == 0) {
      port_of_first = ports[0];
      attacker = std::thread{[&, port = ports[0]] {
        std::thread more{[&, port] { attack(port, is_over); }};
        has_begun.count_down();
        more.join();
      }};
    } else {
      has_begun.wait();
      std::this_thread::sleep_for(100ms);
    }
    return true;
  };
  const auto begun = clock_type::now();
  group.run();
  const auto took = clock_type::now() - begun;
  is_over = true;
  attacker.join();
  for (const auto& x : group.errors) {
    INFO(x.message);
    CHECK(x == error{});
  }
  CHECK(took < 10s);
  CHECK(group.works());
  INFO(group.reports[0]);
  CHECK(mentions(group.reports[0], "refused"));
  CHECK(group.reports[0].size() < 1000);
  // Listens only while it forms.
  CHECK(!dial(port_of_first));
}

} // namespace

TEST_CASE("a group forms while strangers connect and stay silent, and while they reset their connections") {
  for (auto encrypted : modes()) {
    attacked(encrypted, [](std::uint16_t port, const std::atomic<bool>& is_over) {
      std::vector<unique_fd> silent;
      while (!is_over && silent.size() < 400)
        silent.push_back(dial(port));
    });
    attacked(encrypted, [](std::uint16_t port, const std::atomic<bool>& is_over) {
      for (int i = 0; i < 1000 || !is_over; ++i)
        if (auto socket = dial(port))
          reset_connection(std::move(socket));
        else
          break;
    });
  }
}

TEST_CASE("a group forms while strangers send garbage, TLS, halves of greetings, and one byte at a time") {
  std::mt19937 random{5};
  const auto garbage = [&](std::size_t size) {
    std::vector<std::byte> result(size);
    for (auto& x : result)
      x = static_cast<std::byte>(random());
    return result;
  };
  const auto of_http = std::string{"GET / HTTP/1.1\r\nHost: localhost\r\nX: "} + std::string(200, 'x');
  auto of_tls = garbage(300);
  of_tls[0] = std::byte{0x16};
  const auto large = garbage(1 << 20);
  attacked(true, [&](std::uint16_t port, const std::atomic<bool>& is_over) {
    const auto identity = tcp::make_identity(options_for(1, 3));
    const tcp::dialling_handshake handshake{identity, 0, 0, tcp::random_nonce()};
    std::vector<unique_fd> kept;
    for (int i = 0; !is_over; ++i) {
      auto socket = dial(port);
      if (!socket)
        break;
      switch (i % 5) {
      case 0:
        send_all(socket, std::as_bytes(std::span{of_http}));
        break;
      case 1:
        send_all(socket, of_tls);
        break;
      case 2:
        send_all(socket, handshake.hello().first(40));
        break;
      case 3:
        send_all(socket, std::span{handshake.hello()}.first(1));
        break;
      default:
        send_all(socket, large);
      }
      if (kept.size() < 60)
        kept.push_back(std::move(socket));
    }
    // Byte after byte, until the time is up.
    for (std::size_t i = 1; i < 79 && !is_over; ++i) {
      for (auto& x : kept)
        send_all(x, handshake.hello().subspan(i, 1));
      std::this_thread::sleep_for(1ms);
    }
  });
}

TEST_CASE("greetings that were overheard are of no use, whatever follows them") {
  attacked(true, [&](std::uint16_t port, const std::atomic<bool>& is_over) {
    const auto identity = tcp::make_identity(options_for(1, 3));
    const tcp::dialling_handshake overheard{identity, 0, 0, tcp::random_nonce()};
    for (int i = 0; i < 50 && !is_over; ++i) {
      auto socket = dial(port);
      if (!socket)
        break;
      send_all(socket, overheard.hello());
      const auto challenge = read_some(socket, tcp::challenge_bytes);
      if (challenge.size() != tcp::challenge_bytes)
        continue;
      // The acceptor's own proof, sent back.
      send_all(socket, std::span{challenge}.last(tcp::proof_bytes));
      const auto answer = read_some(socket, tcp::welcome_bytes);
      CHECK((answer.empty() || answer[0] == static_cast<std::byte>(tcp::refusal::wrong_secret)));
    }
  });
}

TEST_CASE("nothing is left of a thousand connections while a group forms") {
  const auto before = open_descriptors();
  attacked(false, [](std::uint16_t port, const std::atomic<bool>&) {
    for (int i = 0; i < 1000; ++i)
      if (!dial(port))
        break;
  });
  CHECK(open_descriptors() == before);
}

TEST_CASE("the handshake goes through with the secret, and at every wrong byte ends with a refusal") {
  const auto mine = tcp::make_identity(options_for(1, 3));
  const auto theirs = tcp::make_identity(options_for(0, 3));
  const auto own = tcp::random_nonce();
  const auto other = tcp::random_nonce();
  // The number of the byte that is changed on the way, of the three messages that carry a proof or are covered by one.
  const auto total = tcp::hello_bytes + tcp::challenge_bytes + tcp::proof_bytes;
  for (std::size_t wrong = 0; wrong <= total; ++wrong) {
    const auto pass_on = [wrong, at = std::size_t{0}](std::span<const std::byte> message) mutable {
      std::vector<std::byte> result(message.begin(), message.end());
      if (wrong >= at && wrong - at < result.size())
        result[wrong - at] ^= std::byte{1};
      at += result.size();
      return result;
    };
    auto carry = pass_on;
    tcp::dialling_handshake dialler{mine, 0, 1, own};
    tcp::accepting_handshake acceptor{theirs, other};
    auto step = acceptor.take(carry(dialler.hello()));
    if (const auto* challenge = std::get_if<tcp::goes_on>(&step)) {
      auto proof = dialler.take(carry(challenge->reply));
      if (const auto* sent = std::get_if<tcp::goes_on>(&proof)) {
        step = acceptor.take(carry(sent->reply));
        if (const auto* done = std::get_if<tcp::established>(&step)) {
          REQUIRE(wrong == total);
          CHECK(done->name == tcp::connection_name{1, 0, 1});
          const auto welcome = dialler.take(done->reply);
          const auto* also = std::get_if<tcp::established>(&welcome);
          REQUIRE(also != nullptr);
          CHECK(also->key == done->key);
          CHECK(also->name == done->name);
          continue;
        }
      } else {
        CHECK(wrong < total);
        continue;
      }
    }
    CHECK(wrong < total);
    CHECK(std::holds_alternative<tcp::refused>(step));
  }
}

// -- messages
// ------------------------------------------------------------------------------------------------------------

TEST_CASE("messages of all sizes arrive, also where they come before their receive and in another order than calls") {
  for (auto kind : {swept_transport::tcp, swept_transport::tcp_encrypted}) {
    rank_group group{kind, 2};
    const std::vector<std::size_t> sizes{1,      55,     56,     57,     4096,   8191,    8192,
                                         16'383, 16'384, 16'385, 65'536, 65'537, 300'000, 5'000'000};
    const auto byte_at = [](std::size_t message, std::size_t i) {
      return static_cast<std::byte>((message * 37 + i * 11 + (i >> 8)) % 251);
    };
    const auto seen = group.run([&](communicator& x) {
      for (std::size_t m = 0; m < sizes.size(); ++m) {
        std::vector<std::byte> data(sizes[m]);
        if (x.rank().value == 0) {
          for (std::size_t i = 0; i < data.size(); ++i)
            data[i] = byte_at(m, i);
          if (auto sent = x.send(rank_id{1}, data); !sent)
            return sent.error();
          continue;
        }
        if (auto got = x.receive(rank_id{0}, data); !got)
          return got.error();
        for (std::size_t i = 0; i < data.size(); ++i)
          if (data[i] != byte_at(m, i))
            return error{errc::damaged, "wrong byte"};
      }
      return error{};
    });
    CHECK(seen == std::vector<error>(2));
    // Many small ones first, then a collective call, then their receives: they are kept meanwhile.
    const auto later = group.run([&](communicator& x) {
      std::array<std::byte, 1000> data{};
      for (int i = 0; i < 100 && x.rank().value == 0; ++i) {
        data.fill(static_cast<std::byte>(i));
        if (auto sent = x.send(rank_id{1}, data); !sent)
          return sent.error();
      }
      if (auto met = x.barrier(); !met)
        return met.error();
      for (int i = 0; i < 100 && x.rank().value == 1; ++i) {
        if (auto got = x.receive(rank_id{0}, data); !got)
          return got.error();
        if (data[0] != static_cast<std::byte>(i) || data[999] != data[0])
          return error{errc::damaged, "another message"};
      }
      return error{};
    });
    CHECK(later == std::vector<error>(2));
  }
}

TEST_CASE("a send that nobody receives is found out, however much the sockets take") {
  for (std::size_t size_bytes : {400'000, 40'000'000}) {
    tcp_group group{2, 60s};
    const auto seen = group.run([&](communicator& x) {
      std::vector<std::byte> data(size_bytes);
      return error_of(x.rank().value == 0 ? x.send(rank_id{1}, data) : x.barrier());
    });
    for (const auto& x : seen) {
      INFO(x.message);
      CHECK(x.code == errc::mismatch);
      CHECK(mentions(x.message, "send #1"));
      CHECK(mentions(x.message, "barrier #1"));
    }
  }
}

TEST_CASE("large transfers in both directions at once do not wait for each other") {
  for (auto kind : {swept_transport::tcp, swept_transport::tcp_encrypted})
    for (std::uint32_t world_size : {2u, 3u, 7u}) {
      rank_group group{kind, world_size};
      const std::size_t block = 3'000'000;
      const auto seen = group.run([&](communicator& x) {
        const auto me = x.rank().value;
        std::vector<std::uint8_t> input(block * world_size), output(block * world_size);
        for (std::uint32_t r = 0; r < world_size; ++r)
          std::fill_n(input.begin() + static_cast<std::ptrdiff_t>(r * block), block,
                      static_cast<std::uint8_t>(me * 16 + r));
        if (auto done = x.all_to_all(std::as_bytes(std::span{input}), std::as_writable_bytes(std::span{output})); !done)
          return done.error();
        for (std::uint32_t r = 0; r < world_size; ++r)
          for (auto at : {r * block, r * block + block / 2, (r + 1) * block - 1})
            if (output[at] != r * 16 + me)
              return error{errc::damaged, "wrong block"};
        return error{};
      });
      CHECK(seen == std::vector<error>(world_size));
    }
}

TEST_CASE("an abort from another thread ends a call that is sending, receiving, or has yet to begin") {
  for (auto kind : {swept_transport::tcp, swept_transport::tcp_encrypted}) {
    rank_group group{kind, 2};
    const error reason{errc::stopped, "enough"};
    std::vector<std::byte> data(50'000'000);
    std::latch begun{1};
    error seen;
    std::thread caller{[&] {
      begun.count_down();
      seen = error_of(group[0].send(rank_id{1}, data));
    }};
    begun.wait();
    std::this_thread::sleep_for(20ms);
    group[0].abort(reason);
    caller.join();
    CHECK(seen == reason);
    CHECK(error_of(group[0].barrier()) == reason);
    // The peer was in no call. It notices with its next one.
    const auto later = error_of(group[1].barrier());
    CHECK(later.code == errc::aborted);
    CHECK(mentions(later.message, "lost rank 0"));
  }
}

namespace {

/// Two ranks as processes, which can be killed and frozen. Forked before this process has threads.
class two_processes {
 public:
  explicit two_processes(tcp_options options) : options_(std::move(options)) {
    std::array<int, 2> pair{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair.data()) == 0);
    own_ = unique_fd{pair[0]};
    of_child_ = unique_fd{pair[1]};
  }

  [[nodiscard]] expected<std::unique_ptr<communicator>> make_parents() { return make(0, own_); }
  [[nodiscard]] expected<std::unique_ptr<communicator>> make_childs() { return make(1, of_child_); }

 private:
  /// The blobs travel over a pair of sockets.
  expected<std::unique_ptr<communicator>> make(std::uint32_t rank, const unique_fd& link) {
    options_.rank = rank_id{rank};
    return make_tcp_communicator(options_, [&](const std::string& mine) -> expected<std::vector<std::string>> {
      std::array<char, 256> theirs{};
      static_cast<void>(::send(link.get(), mine.data(), mine.size(), 0));
      const auto got = ::recv(link.get(), theirs.data(), theirs.size(), 0);
      const std::string other(theirs.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
      return rank == 0 ? std::vector<std::string>{mine, other} : std::vector<std::string>{other, mine};
    });
  }

  tcp_options options_;
  unique_fd own_;
  unique_fd of_child_;
};

} // namespace

TEST_CASE("a process that is killed in the middle of a message is named at once") {
  for (auto encrypted : modes()) {
    auto options = options_for(0, 2);
    options.encrypted = encrypted;
    two_processes both{options};
    const auto child = ::fork();
    REQUIRE(child >= 0);
    std::vector<float> data(10'000'000);
    if (child == 0) {
      const auto group = both.make_childs();
      for (;;)
        if (!group || !(*group)->all_reduce(std::span{data}))
          ::_exit(1);
    }
    auto group = both.make_parents();
    REQUIRE(group);
    std::thread killer{[child] {
      std::this_thread::sleep_for(200ms);
      ::kill(child, SIGKILL);
    }};
    error seen;
    while (seen.code == errc::none)
      seen = error_of((*group)->all_reduce(std::span{data}));
    killer.join();
    INFO(seen.message);
    CHECK(seen.code == errc::aborted);
    CHECK(mentions(seen.message, "lost rank 1"));
    ::waitpid(child, nullptr, 0);
  }
}

TEST_CASE("a process that is frozen fails the call that needs it once it has not answered for long, and is named") {
  auto options = options_for(0, 2);
  options.answer_deadline = 400ms;
  two_processes both{options};
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto group = both.make_childs();
    for (;;)
      if (!group || !(*group)->barrier())
        ::_exit(1);
  }
  auto group = both.make_parents();
  REQUIRE(group);
  CHECK((*group)->barrier());
  CHECK((*group)->unanswering().empty());
  ::kill(child, SIGSTOP);
  error seen;
  while (seen.code == errc::none)
    seen = error_of((*group)->barrier());
  INFO(seen.message);
  CHECK(seen.code == errc::aborted);
  CHECK(mentions(seen.message, "rank 1 did not answer for 400 ms"));
  CHECK((*group)->unanswering() == std::vector{rank_id{1}});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_CASE("a peer that computes for long answers all the same") {
  forming group{2};
  for (auto& x : group.options)
    x.answer_deadline = 300ms;
  group.run();
  std::thread late{[&] {
    std::this_thread::sleep_for(1500ms);
    CHECK(group.members[1]->barrier());
  }};
  CHECK(group.members[0]->barrier());
  CHECK(group.members[0]->unanswering().empty());
  late.join();
}

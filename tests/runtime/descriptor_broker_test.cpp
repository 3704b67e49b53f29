#include <troupe/runtime/descriptor_broker.hpp>

#include "node/local_launcher.hpp"
#include "process/descriptor_packets.hpp"

#include <troupe/runtime/descriptor_link.hpp>

#include <built.hpp>
#include <doctest/doctest.h>
#include <processes.hpp>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdio>
#include <fcntl.h>
#include <future>
#include <mutex>
#include <set>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;
using testing::becomes_true;
using testing::hang_limit;
using peers = std::vector<std::vector<unique_fd>>;

const run_id some_run{"a run"};

std::size_t open_descriptors() {
  auto entries = std::filesystem::directory_iterator{"/proc/self/fd"};
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

unique_fd memory_with(const std::string& text) {
  unique_fd result{memfd_create("descriptor-test", MFD_CLOEXEC)};
  REQUIRE(result);
  REQUIRE(write(result.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  return result;
}

std::string text_in(const unique_fd& memory) {
  std::array<char, 64> buffer;
  auto n = pread(memory.get(), buffer.data(), buffer.size(), 0);
  return {buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0))};
}

std::vector<unique_fd> memories(std::size_t count, const std::string& prefix) {
  std::vector<unique_fd> result;
  for (std::size_t i = 0; i < count; ++i)
    result.push_back(memory_with(prefix + "#" + std::to_string(i)));
  return result;
}

std::vector<int> numbers(const std::vector<unique_fd>& descriptors) {
  std::vector<int> result;
  for (const auto& each : descriptors)
    result.push_back(each.get());
  return result;
}

std::string label(std::uint64_t generation, std::uint32_t rank) {
  return "generation " + std::to_string(generation) + " rank " + std::to_string(rank);
}

/// A node's broker, with workers as threads of the test.
struct node {
  descriptor_broker broker = std::move(descriptor_broker::make()).value();

  unique_fd add(std::uint32_t worker, const run_id& run = some_run) {
    auto result = broker.add(run, {worker});
    REQUIRE_MESSAGE(result.has_value(), result.error().message);
    return std::move(*result);
  }
};

/// A worker of a test, whose exchanges run on their own thread.
struct worker {
  explicit worker(unique_fd socket) : link(std::move(socket)) {}

  std::future<expected<peers>> begin(std::uint64_t generation, std::uint32_t rank, std::uint32_t world,
                                     std::size_t count = 1) {
    return std::async(std::launch::async, [=, this] {
      auto mine = memories(count, label(generation, rank));
      return link.exchange({{{generation}}, rank, world}, numbers(mine), hang_limit, cancel.get_token());
    });
  }

  descriptor_link link;
  std::stop_source cancel;
};

errc code_of(const expected<peers>& x) {
  return x ? errc::none : x.error().code;
}

/// The descriptors that a rank must have after an exchange.
void check_peers(const expected<peers>& got, std::uint64_t generation, std::uint32_t rank, std::uint32_t world,
                 std::size_t count) {
  REQUIRE_MESSAGE(got.has_value(), got.error().message);
  REQUIRE(got->size() == world);
  for (std::uint32_t peer = 0; peer < world; ++peer) {
    const auto& theirs = (*got)[peer];
    REQUIRE(theirs.size() == (peer == rank ? 0 : count));
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      CHECK(text_in(theirs[i]) == label(generation, peer) + "#" + std::to_string(i));
      CHECK((fcntl(theirs[i].get(), F_GETFD) & FD_CLOEXEC) != 0);
    }
  }
}

void offer(const unique_fd& socket, std::uint64_t generation, std::uint32_t rank, std::uint32_t world,
           const std::vector<int>& descriptors) {
  auto bytes = to_bytes(offer_packet{{{{generation}}, rank, world}, static_cast<std::uint32_t>(descriptors.size())});
  REQUIRE(send_packet(socket.get(), bytes, descriptors) == send_outcome::sent);
}

/// The next packet from the node.
received_packet next_packet(const unique_fd& socket) {
  pollfd wanted{socket.get(), POLLIN, 0};
  REQUIRE(poll(&wanted, 1, static_cast<int>(hang_limit.count())) == 1);
  return receive_packet(socket.get());
}

answer_packet next_answer(const unique_fd& socket) {
  auto packet = next_packet(socket);
  REQUIRE(packet.what == received_packet::outcome::packet);
  auto result = parse_answer(packet.bytes);
  REQUIRE(result);
  return *result;
}

/// Checks in its destructor that as many descriptors are open as in its constructor.
class leak_check {
 public:
  ~leak_check() { CHECK(open_descriptors() == before_); }

 private:
  std::size_t before_ = open_descriptors();
};

} // namespace

TEST_CASE("each rank gets the descriptors of all others in the order of ranks, generation after generation") {
  for (std::uint32_t world : {1u, 2u, 3u, 8u}) {
    leak_check no_leak;
    node here;
    std::vector<std::unique_ptr<worker>> workers;
    // Ranks are not in the order of workers.
    for (std::uint32_t rank = 0; rank < world; ++rank)
      workers.push_back(std::make_unique<worker>(here.add(100 - rank)));
    std::uint64_t generation = 0;
    for (std::size_t count : {std::size_t{1}, std::size_t{0}, max_offered_descriptors, std::size_t{1}}) {
      generation += 3;
      CAPTURE(world);
      CAPTURE(generation);
      std::vector<std::future<expected<peers>>> pending;
      for (std::uint32_t rank = 0; rank < world; ++rank)
        pending.push_back(workers[rank]->begin(generation, rank, world, count));
      for (std::uint32_t rank = 0; rank < world; ++rank)
        check_peers(pending[rank].get(), generation, rank, world, count);
    }
  }
}

TEST_CASE("received descriptors refer to the same memory, not a copy") {
  node here;
  worker first{here.add(0)};
  worker second{here.add(1)};
  auto memory = memory_with("before");
  std::array<int, 1> mine{memory.get()};
  auto theirs = second.begin(1, 1, 2, 0);
  REQUIRE(first.link.exchange({{{1}}, 0, 2}, mine, hang_limit, {}).has_value());
  auto got = theirs.get();
  REQUIRE(got.has_value());
  REQUIRE(pwrite(memory.get(), "after!", 6, 0) == 6);
  CHECK(text_in((*got)[0][0]) == "after!");
}

TEST_CASE("more descriptors than fit into one packet arrive in several") {
  leak_check no_leak;
  node here;
  constexpr std::uint32_t world = 2 + max_packet_descriptors / max_offered_descriptors;
  static_assert((world - 1) * max_offered_descriptors > max_packet_descriptors);
  worker first{here.add(0)};
  std::vector<unique_fd> others;
  for (std::uint32_t rank = 1; rank < world; ++rank) {
    others.push_back(here.add(rank));
    auto theirs = memories(max_offered_descriptors, label(1, rank));
    offer(others.back(), 1, rank, world, numbers(theirs));
  }
  check_peers(first.begin(1, 0, world, max_offered_descriptors).get(), 1, 0, world, max_offered_descriptors);
}

TEST_CASE("runs are separate") {
  node here;
  worker here_first{here.add(0, {"first"})};
  worker there_first{here.add(0, {"second"})};
  worker here_second{here.add(1, {"first"})};
  worker there_second{here.add(1, {"second"})};
  auto a = here_first.begin(7, 0, 2, 1);
  auto b = there_first.begin(1, 0, 2, 2);
  auto c = here_second.begin(7, 1, 2, 1);
  auto d = there_second.begin(1, 1, 2, 2);
  check_peers(a.get(), 7, 0, 2, 1);
  check_peers(b.get(), 1, 0, 2, 2);
  check_peers(c.get(), 7, 1, 2, 1);
  check_peers(d.get(), 1, 1, 2, 2);
}

TEST_CASE("an older generation is refused, and a newer one ends the wait in an older one") {
  leak_check no_leak;
  node here;
  worker slow{here.add(0)};
  worker fast{here.add(1)};
  worker joiner{here.add(2)};
  auto before = open_descriptors();
  auto waiting = slow.begin(3, 0, 2, 5);
  // The node holds these five; the worker's own five and its wake-up descriptor are open as well.
  REQUIRE(becomes_true([&] { return open_descriptors() == before + 11; }));
  auto newer = fast.begin(4, 0, 2);
  auto refused = waiting.get();
  CHECK(code_of(refused) == errc::stale_generation);
  CHECK(code_of(joiner.begin(3, 1, 2).get()) == errc::stale_generation);
  auto joined = joiner.begin(4, 1, 2);
  check_peers(newer.get(), 4, 0, 2, 1);
  check_peers(joined.get(), 4, 1, 2, 1);
  // The node closes its copies after the answers.
  CHECK(becomes_true([&] { return open_descriptors() == before; }));
}

TEST_CASE("contradictions between workers are reported at once") {
  node here;
  worker first{here.add(0)};
  worker second{here.add(1)};
  worker third{here.add(2)};
  SUBCASE("two workers claim one rank") {
    auto a = first.begin(1, 1, 3);
    auto b = second.begin(1, 1, 3);
    auto reason = a.get();
    CHECK(code_of(reason) == errc::mismatch);
    CHECK(reason.error().message.find("both claim local rank 1") != std::string::npos);
    CHECK(code_of(b.get()) == errc::mismatch);
    CHECK(code_of(third.begin(1, 2, 3).get()) == errc::mismatch);
  }
  SUBCASE("workers count differently") {
    auto a = first.begin(1, 0, 2);
    auto b = second.begin(1, 1, 3);
    CHECK(code_of(a.get()) == errc::mismatch);
    CHECK(code_of(b.get()) == errc::mismatch);
  }
  auto a = first.begin(2, 0, 3);
  auto b = second.begin(2, 1, 3);
  auto c = third.begin(2, 2, 3);
  check_peers(a.get(), 2, 0, 3, 1);
  check_peers(b.get(), 2, 1, 3, 1);
  check_peers(c.get(), 2, 2, 3, 1);
}

TEST_CASE("a worker's exchange for a later group ends its own for an earlier one, on another thread") {
  leak_check no_leak;
  node here;
  worker member{here.add(0)};
  worker joiner{here.add(1)};
  // The joiner never comes to the staging group.
  auto staging = std::async(std::launch::async, [&] {
    return member.link.exchange({{{1}, 5}, 0, 2}, {}, hang_limit, {});
  });
  CHECK(staging.wait_for(20ms) == std::future_status::timeout);
  auto next = member.begin(2, 0, 2);
  CHECK(code_of(staging.get()) == errc::stale_generation);
  // And one that is late does not disturb the later one.
  CHECK(code_of(member.link.exchange({{{1}, 6}, 0, 2}, {}, hang_limit, {})) == errc::stale_generation);
  auto others = joiner.begin(2, 1, 2);
  check_peers(next.get(), 2, 0, 2, 1);
  check_peers(others.get(), 2, 1, 2, 1);
}

TEST_CASE("a cancelled exchange returns, and its late answer does not disturb the next generation") {
  leak_check no_leak;
  node here;
  worker first{here.add(0)};
  worker second{here.add(1)};
  auto before = open_descriptors();
  auto pending = first.begin(1, 0, 2);
  REQUIRE(becomes_true([&] { return open_descriptors() == before + 3; }));
  first.cancel.request_stop();
  CHECK(code_of(pending.get()) == errc::aborted);
  CHECK(code_of(first.begin(1, 0, 2).get()) == errc::aborted);
  // The place remains taken, so the other worker is served, and an answer is sent to the first.
  check_peers(second.begin(1, 1, 2).get(), 1, 1, 2, 1);
  first.cancel = {};
  auto a = first.begin(2, 0, 2, 2);
  auto b = second.begin(2, 1, 2, 2);
  check_peers(a.get(), 2, 0, 2, 2);
  check_peers(b.get(), 2, 1, 2, 2);
  CHECK(becomes_true([&] { return open_descriptors() == before; }));
}

TEST_CASE("an exchange that does not complete in time fails, and a later one works") {
  leak_check no_leak;
  node here;
  worker first{here.add(0)};
  worker second{here.add(1)};
  std::uint64_t generation = 0;
  for (auto limit : {0ms, -1ms, 5ms}) {
    auto late = first.link.exchange({{{++generation}}, 0, 2}, {}, limit, {});
    CHECK(code_of(late) == errc::timed_out);
  }
  auto a = first.begin(10, 0, 2);
  auto b = second.begin(10, 1, 2);
  check_peers(a.get(), 10, 0, 2, 1);
  check_peers(b.get(), 10, 1, 2, 1);
}

TEST_CASE("invalid arguments are rejected without asking the node") {
  node here;
  worker only{here.add(0)};
  std::array<int, max_offered_descriptors + 1> many{};
  CHECK(code_of(only.link.exchange({{{1}}, 0, 1}, many, hang_limit, {})) == errc::invalid_argument);
  CHECK(code_of(only.link.exchange({{{1}}, 1, 1}, {}, hang_limit, {})) == errc::invalid_argument);
  CHECK(code_of(only.link.exchange({{{1}}, 0, 0}, {}, hang_limit, {})) == errc::invalid_argument);
  CHECK(code_of(only.link.exchange({{{1}}, 0, 4'000'000'000}, {}, hang_limit, {})) == errc::invalid_argument);
  CHECK(code_of(only.link.exchange({{{0}}, 0, 1}, {}, hang_limit, {})) == errc::invalid_argument);
  std::array<int, 1> closed{-1};
  CHECK(code_of(only.link.exchange({{{1}}, 0, 1}, closed, hang_limit, {})) == errc::io_error);
  CHECK(only.link.exchange({{{1}}, 0, 1}, {}, hang_limit, {}).has_value());
}

TEST_CASE("garbage is refused without leaks, and the worker can still be served") {
  leak_check no_leak;
  node here;
  auto socket = here.add(0);
  auto before = open_descriptors();
  {
    auto memory = memory_with("");
    auto good = to_bytes(offer_packet{{{1}, 0, 1}, 1});
    auto corrupt = [&good](std::size_t at) {
      auto result = good;
      result[at] ^= std::byte{0xff};
      return result;
    };
    struct letter {
      std::vector<std::byte> bytes;
      std::size_t descriptors;
    };
    std::vector<letter> letters;
    letters.push_back({std::vector<std::byte>(1), 1});
    letters.push_back({std::vector<std::byte>(32), 0});
    letters.push_back({std::vector<std::byte>(max_packet_bytes + 100), max_packet_descriptors});
    // Another kind of packet, another version, too much data, a different count, too many descriptors.
    letters.push_back({corrupt(0), 1});
    letters.push_back({corrupt(4), 1});
    letters.push_back({good, 1});
    letters.back().bytes.emplace_back();
    letters.push_back({good, 0});
    letters.push_back({good, 2});
    letters.push_back({to_bytes(offer_packet{{{1}, 0, 1}, 9}), 9});
    // A rank out of range, no workers, generation 0, an absurd number of workers.
    letters.push_back({to_bytes(offer_packet{{{1}, 1, 1}, 1}), 1});
    letters.push_back({to_bytes(offer_packet{{{1}, 0, 0}, 1}), 1});
    letters.push_back({to_bytes(offer_packet{{{0}, 0, 1}, 1}), 1});
    letters.push_back({to_bytes(offer_packet{{{1}, 0, 0xffffffff}, 1}), 1});
    for (const auto& each : letters) {
      REQUIRE(send_packet(socket.get(), each.bytes, std::vector<int>(each.descriptors, memory.get())) ==
              send_outcome::sent);
      auto answer = next_answer(socket);
      CHECK(answer.code == errc::invalid_argument);
      CHECK_FALSE(answer.text.empty());
    }
  }
  CHECK(becomes_true([&] { return open_descriptors() == before; }));
  worker reformed{std::move(socket)};
  check_peers(reformed.begin(1, 0, 1).get(), 1, 0, 1, 1);
}

TEST_CASE("a node that has reached its limit on open files reports it") {
  node here;
  auto socket = here.add(0);
  auto memory = memory_with("");
  auto bytes = to_bytes(offer_packet{{{1}, 0, 1}, 1});
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none{3, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  std::array<int, 1> mine{memory.get()};
  auto sent = send_packet(socket.get(), bytes, mine);
  pollfd wanted{socket.get(), POLLIN, 0};
  auto ready = poll(&wanted, 1, static_cast<int>(hang_limit.count()));
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(sent == send_outcome::sent);
  REQUIRE(ready == 1);
  auto answer = next_answer(socket);
  CHECK(answer.code == errc::io_error);
  CHECK(answer.group == descriptor_group{{1}});
  worker recovered{std::move(socket)};
  check_peers(recovered.begin(1, 0, 1).get(), 1, 0, 1, 1);
}

TEST_CASE("a worker that has reached its limit on open files fails without a leak and can try the next generation") {
  leak_check no_leak;
  node here;
  auto other = here.add(1);
  worker first{here.add(0)};
  {
    auto before = open_descriptors();
    auto theirs = memories(2, "x");
    offer(other, 1, 1, 2, numbers(theirs));
    REQUIRE(becomes_true([&] { return open_descriptors() == before + 4; }));
  }
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  // One more, for its wake-up descriptor.
  auto lowest_free = unique_fd{dup(0)}.get();
  rlimit tight{static_cast<rlim_t>(lowest_free) + 1, limit.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &tight) == 0);
  auto got = first.link.exchange({{{1}}, 0, 2}, {}, hang_limit, {});
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(code_of(got) == errc::io_error);
  auto next = first.begin(2, 0, 2);
  offer(other, 2, 1, 2, {});
  CHECK(next.get().has_value());
}

namespace {

/// Drops the capability that lets root send more descriptors than the limit on open files, during its lifetime.
class without_privileges {
 public:
  without_privileges() { REQUIRE(seteuid(before_ == 0 ? 65534 : before_) == 0); }
  ~without_privileges() { CHECK(seteuid(before_) == 0); }

 private:
  uid_t before_ = geteuid();
};

/// Lowers the limit on open files to `spare` more than are open now.
class few_descriptors {
 public:
  explicit few_descriptors(unsigned spare) {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    auto lowest_free = unique_fd{dup(0)}.get();
    rlimit tight{static_cast<rlim_t>(lowest_free) + spare, before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &tight) == 0);
  }
  ~few_descriptors() { CHECK(setrlimit(RLIMIT_NOFILE, &before_) == 0); }

 private:
  rlimit before_{};
};

} // namespace

TEST_CASE("descriptors that the kernel does not accept at first are sent later") {
  leak_check no_leak;
  node here;
  worker first{here.add(0)};
  auto second = here.add(1);
  auto last = here.add(2);
  auto before = open_descriptors();
  auto memory = memory_with(label(1, 1) + "#0");
  offer(second, 1, 1, 3, {memory.get()});
  REQUIRE(becomes_true([&] { return open_descriptors() == before + 2; }));

  std::array<int, 2> ends{-1, -1};
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  unique_fd from{ends[0]};
  unique_fd to{ends[1]};
  without_privileges plain;
  few_descriptors tight{20};
  std::vector<int> many(max_packet_descriptors, memory.get());
  std::array<std::byte, 1> byte{};
  auto outcome = send_outcome::sent;
  for (int i = 0; i < 20 && outcome == send_outcome::sent; ++i)
    outcome = send_packet(from.get(), byte, many);
  if (outcome == send_outcome::sent) {
    std::puts("SKIP: this kernel does not limit the descriptors in flight");
    return;
  }
  REQUIRE(outcome == send_outcome::congested);
  auto pending = first.begin(1, 0, 3);
  CHECK(pending.wait_for(20ms) == std::future_status::timeout);
  SUBCASE("by the worker") {
    from.reset();
    to.reset();
    offer(last, 1, 2, 3, {});
  }
  SUBCASE("by the node") {
    // The worker gives up and then offers none.
    first.cancel.request_stop();
    CHECK(code_of(pending.get()) == errc::aborted);
    first.cancel = {};
    pending = first.begin(1, 0, 3, 0);
    offer(last, 1, 2, 3, {});
    REQUIRE(next_answer(second).code == errc::none);
    CHECK(pending.wait_for(20ms) == std::future_status::timeout);
    from.reset();
    to.reset();
  }
  auto got = pending.get();
  REQUIRE_MESSAGE(got.has_value(), got.error().message);
  CHECK(text_in((*got)[1].at(0)) == label(1, 1) + "#0");
  CHECK_FALSE(next_packet(last).descriptors.empty());
}

TEST_CASE("a worker that sends packets without completing an exchange is disconnected with the reason") {
  leak_check no_leak;
  node here;
  auto socket = here.add(0);
  auto memory = memory_with("");
  std::array<int, 1> mine{memory.get()};
  std::vector<std::byte> garbage(10);
  std::size_t refusals = 0;
  for (;;) {
    if (send_packet(socket.get(), garbage, mine) != send_outcome::sent)
      break;
    auto packet = next_packet(socket);
    if (packet.what != received_packet::outcome::packet)
      break;
    ++refusals;
    REQUIRE(refusals <= max_fruitless_packets + 1);
  }
  CHECK(refusals == max_fruitless_packets + 1);
  descriptor_link link{std::move(socket)};
  CHECK(code_of(link.exchange({{{1}}, 0, 1}, {}, hang_limit, {})) == errc::node_lost);
}

TEST_CASE("a worker may take part in any number of exchanges") {
  node here;
  worker first{here.add(0)};
  for (std::uint64_t generation = 1; generation <= 2 * max_fruitless_packets; ++generation)
    REQUIRE(first.link.exchange({{{generation}}, 0, 1}, {}, hang_limit, {}).has_value());
}

TEST_CASE("a worker that never reads is disconnected instead of using unlimited memory") {
  leak_check no_leak;
  node here;
  auto socket = here.add(0);
  for (std::uint64_t generation = 1;; ++generation) {
    REQUIRE(generation < 1'000'000);
    auto outcome = send_packet(socket.get(), to_bytes(offer_packet{{{{generation}}, 0, 1}, 0}), {});
    if (outcome == send_outcome::closed)
      break;
    pollfd writable{socket.get(), POLLOUT, 0};
    REQUIRE(poll(&writable, 1, static_cast<int>(hang_limit.count())) == 1);
  }
  CHECK(here.broker.add(some_run, {1}).has_value());
}

TEST_CASE("a slow reader does not keep the descriptors of an old exchange open") {
  leak_check no_leak;
  node here;
  auto slow = here.add(0);
  auto before = open_descriptors();
  std::uint64_t generation = 0;
  // Each exchange leaves an answer in its socket until that is full.
  for (; generation < 400; ++generation) {
    offer(slow, generation + 1, 0, 2, {});
    auto other = here.add(static_cast<std::uint32_t>(1000 + generation));
    auto theirs = memories(1, "x");
    offer(other, generation + 1, 1, 2, numbers(theirs));
    // The node has answered both workers once the other one has its part.
    REQUIRE(next_answer(other).code == errc::none);
  }
  // The node still holds at most those of the newest exchange.
  CHECK(becomes_true([&] { return open_descriptors() <= before + 1; }));
  std::set<std::uint64_t> whole;
  std::set<std::uint64_t> refused;
  for (std::uint64_t last = 0; last < generation;) {
    auto answer = next_answer(slow);
    CHECK(answer.group.generation.value >= last);
    last = answer.group.generation.value;
    (answer.code == errc::none ? whole : refused).insert(last);
  }
  CHECK(whole.size() + refused.size() == generation);
  CHECK_FALSE(refused.empty());
  CHECK(becomes_true([&] { return open_descriptors() <= before; }));
}

TEST_CASE("a worker that ends while it waits leaves its place open and no descriptors") {
  leak_check no_leak;
  node here;
  worker first{here.add(0)};
  worker third{here.add(2)};
  auto before = open_descriptors();
  {
    auto second = here.add(1);
    auto theirs = memories(3, "x");
    offer(second, 1, 1, 3, numbers(theirs));
    REQUIRE(becomes_true([&] { return open_descriptors() == before + 8; }));
  }
  CHECK(becomes_true([&] { return open_descriptors() == before; }));
  auto a = first.begin(1, 0, 3);
  REQUIRE(becomes_true([&] { return open_descriptors() == before + 3; }));
  first.cancel.request_stop();
  CHECK(code_of(a.get()) == errc::aborted);
  first.cancel = {};
  auto b = first.begin(2, 0, 2);
  auto c = third.begin(2, 1, 2);
  check_peers(b.get(), 2, 0, 2, 1);
  check_peers(c.get(), 2, 1, 2, 1);
}

TEST_CASE("an offer that completes an exchange counts even if its worker ends at once") {
  node here;
  worker first{here.add(0)};
  auto before = open_descriptors();
  auto pending = first.begin(1, 0, 2);
  REQUIRE(becomes_true([&] { return open_descriptors() == before + 3; }));
  {
    auto second = here.add(1);
    auto theirs = memories(1, label(1, 1));
    offer(second, 1, 1, 2, numbers(theirs));
  }
  check_peers(pending.get(), 1, 0, 2, 1);
}

TEST_CASE("the end of a run, the removal of a worker and the end of the node end pending exchanges") {
  leak_check no_leak;
  std::optional<node> here;
  here.emplace();
  worker first{here->add(0)};
  worker elsewhere{here->add(0, {"another run"})};
  auto before = open_descriptors();
  auto pending = first.begin(1, 0, 2);
  REQUIRE(becomes_true([&] { return open_descriptors() == before + 3; }));
  SUBCASE("the run") {
    here->broker.end_run(some_run);
    auto ended = pending.get();
    CHECK(code_of(ended) == errc::stale_generation);
    CHECK(ended.error().message.find("run a run has ended") != std::string::npos);
    here->broker.end_run(some_run);
    CHECK(code_of(first.begin(2, 0, 1).get()) == errc::node_lost);
    CHECK(elsewhere.begin(1, 0, 1).get().has_value());
  }
  SUBCASE("the worker") {
    here->broker.remove(some_run, {0});
    here->broker.remove(some_run, {0});
    here->broker.remove({"no such run"}, {0});
    CHECK(code_of(pending.get()) == errc::node_lost);
    CHECK(elsewhere.begin(1, 0, 1).get().has_value());
  }
  SUBCASE("the node") {
    here.reset();
    CHECK(code_of(pending.get()) == errc::node_lost);
    CHECK(code_of(elsewhere.begin(1, 0, 1).get()) == errc::node_lost);
  }
}

TEST_CASE("a worker has one socket at a time") {
  node here;
  auto socket = here.add(0);
  auto second = here.broker.add(some_run, {0});
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error().code == errc::already_exists);
  socket.reset();
  CHECK(becomes_true([&] { return here.broker.add(some_run, {0}).has_value(); }));
}

namespace {

/// The events that a launcher has reported.
struct launch_journal {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<worker_id, expected<std::uint32_t>> pids;
  std::map<worker_id, std::vector<std::string>> lines;
  std::map<worker_id, std::string> ends;

  actors::launcher_events events() {
    return {.started =
                [this](actors::launch_outcome event) {
                  auto lock = std::lock_guard{mutex};
                  pids.emplace(event.worker, std::move(event.pid));
                  changed.notify_all();
                },
            .output =
                [this](const worker_output& event) {
                  auto lock = std::lock_guard{mutex};
                  auto& known = lines[event.worker];
                  known.insert(known.end(), event.lines.begin(), event.lines.end());
                },
            .ended =
                [this](const worker_ended& event) {
                  auto lock = std::lock_guard{mutex};
                  ends[event.worker] = event.description;
                  changed.notify_all();
                }};
  }

  expected<std::uint32_t> wait_for_pid(worker_id worker) {
    auto lock = std::unique_lock{mutex};
    REQUIRE(changed.wait_for(lock, hang_limit, [&] { return pids.contains(worker); }));
    return pids.at(worker);
  }

  void wait_for_ends(std::size_t count) {
    auto lock = std::unique_lock{mutex};
    REQUIRE(changed.wait_for(lock, hang_limit, [&] { return ends.size() == count; }));
  }
};

/// A launcher on this machine with one run of the helper program.
struct launch {
  launch_journal journal;
  std::shared_ptr<worker_entry> entry = std::make_shared<worker_entry>();
  std::unique_ptr<actors::process_launcher> launcher =
      make_local_launcher(std::make_shared<program_finder>(drivers_path{}), entry)(journal.events());

  launch() {
    entry->open({});
    open();
  }

  void open() {
    open_run request;
    request.run = some_run;
    request.program_path = testing::built("tests/bin/runtime_process_child");
    request.build_id =
        std::move(program_file::open(testing::built("tests/bin/runtime_process_child"))).value().identity().build_id;
    auto found = launcher->search(request)();
    REQUIRE_MESSAGE(found.has_value(), found.error().message);
    launcher->open(some_run, *found);
  }

  void start(std::uint32_t worker, std::vector<std::string> arguments) {
    launcher->start({some_run, {worker}, "", std::move(arguments), {}, {}});
    const auto pid = journal.wait_for_pid({worker});
    REQUIRE_MESSAGE(pid.has_value(), pid.error().message);
  }
};

} // namespace

TEST_CASE("worker processes on one node read each other's memory") {
  leak_check no_leak;
  launch here;
  for (std::uint32_t rank : {0u, 1u, 2u})
    here.start(40 + rank, {"exchange", std::to_string(rank), "3"});
  here.journal.wait_for_ends(3);
  for (std::uint32_t rank : {0u, 1u, 2u}) {
    CAPTURE(rank);
    std::vector<std::string> wanted;
    for (std::uint32_t peer : {0u, 1u, 2u})
      if (peer != rank)
        wanted.push_back("rank " + std::to_string(peer) + ": memory of rank " + std::to_string(peer));
    CHECK(here.journal.lines[{40 + rank}] == wanted);
    CHECK(here.journal.ends[{40 + rank}] == "exit code 0");
  }
  here.launcher->close(some_run);
}

TEST_CASE("a launcher that ends a run ends its exchanges") {
  leak_check no_leak;
  launch here;
  here.start(0, {"exchange", "0", "2"});
  here.launcher->kill(some_run);
  here.journal.wait_for_ends(1);
  here.launcher->close(some_run);
  // The generation is that of the first attempt, whose only exchange is still pending.
  for (std::uint32_t life : {1u, 2u}) {
    here.open();
    here.start(life, {"exchange", "0", "1"});
    here.journal.wait_for_ends(1 + life);
    CHECK(here.journal.ends[{life}] == "exit code 0");
    here.launcher->close(some_run);
  }
}

} // namespace troupe::runtime

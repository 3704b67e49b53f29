#include "call_kinds.hpp"

#include <socket_packets.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <built.hpp>
#include <chrono>
#include <csignal>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

using clock = std::chrono::steady_clock;

/// A rank in a process of its own, which is killed with this object.
class rank_process {
 public:
  rank_process() {
    int sockets[2];
    const unique_fd page{::memfd_create("progress", MFD_CLOEXEC)};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0 || ::ftruncate(page.get(), 4096) != 0)
      throw std::system_error{errno, std::generic_category(), "a rank's descriptors"};
    socket_.reset(sockets[0]);
    const unique_fd theirs{sockets[1]};
    progress_ = static_cast<std::atomic<std::uint32_t>*>(
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, page.get(), 0));
    const auto program = built("tests/bin/shm_child");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      // Away from their target numbers, so that neither overwrites the other.
      const auto commands = ::fcntl(theirs.get(), F_DUPFD_CLOEXEC, 10);
      const auto counts = ::fcntl(page.get(), F_DUPFD_CLOEXEC, 10);
      ::dup2(commands, 3);
      ::dup2(counts, 4);
      ::execl(program.c_str(), program.c_str(), nullptr);
      ::_exit(127);
    }
  }
  rank_process(const rank_process&) = delete;
  rank_process& operator=(const rank_process&) = delete;
  ~rank_process() {
    kill();
    ::munmap(progress_, 4096);
  }

  void tell(const std::string& command, std::span<const int> descriptors = {}) const {
    send_packet(socket_.get(), command, descriptors);
  }
  packet hear() const { return receive_packet(socket_.get()); }
  std::string ask(const std::string& command) const {
    tell(command);
    return hear().text;
  }

  std::uint32_t calls() const { return progress_->load(); }

  void kill() {
    if (pid_ <= 0)
      return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  /// Like the kernel's out-of-memory killer: the process is not reaped yet.
  void signal(int number) const { ::kill(pid_, number); }
  void freeze() const {
    ::kill(pid_, SIGSTOP);
    int status = 0;
    ::waitpid(pid_, &status, WUNTRACED);
  }

 private:
  pid_t pid_ = -1;
  unique_fd socket_;
  std::atomic<std::uint32_t>* progress_ = nullptr;
};

using ranks = std::vector<std::unique_ptr<rank_process>>;

ranks start(std::size_t count) {
  ranks result;
  for (std::size_t i = 0; i < count; ++i)
    result.push_back(std::make_unique<rank_process>());
  return result;
}

void form(const ranks& members, std::uint64_t generation, std::chrono::milliseconds deadline = 50s) {
  for (std::size_t rank = 0; rank < members.size(); ++rank)
    members[rank]->tell("form " + std::to_string(generation) + " " + std::to_string(rank) + " " +
                        std::to_string(members.size()) + " " + std::to_string(deadline.count()));
  std::vector<packet> given;
  for (const auto& x : members)
    given.push_back(x->hear());
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    std::vector<int> others;
    for (std::size_t r = 0; r < members.size(); ++r)
      for (const auto& fd : given[r].descriptors)
        if (r != rank)
          others.push_back(fd.get());
    members[rank]->tell("descriptors", others);
  }
  for (const auto& x : members)
    REQUIRE(x->hear().text == "fine");
}

/// The answers of all ranks, which work in parallel.
std::vector<std::string> ask_all(const ranks& members, const std::string& command) {
  for (const auto& x : members)
    x->tell(command);
  std::vector<std::string> result;
  for (const auto& x : members)
    result.push_back(x->hear().text);
  return result;
}

void expect_fine(const ranks& members, const std::string& command) {
  INFO(command);
  for (const auto& x : ask_all(members, command))
    REQUIRE(x == "fine");
}

struct look {
  std::uint64_t descriptors = 0, mappings = 0, shared_mappings = 0, shared_bytes = 0;
};

look look_at(const rank_process& x) {
  std::istringstream text{x.ask("look")};
  look result;
  text >> result.descriptors >> result.mappings >> result.shared_mappings >> result.shared_bytes;
  return result;
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Waits until a rank has made some more calls, and then for a random time, to hit it anywhere in one.
void wait_for_calls(const rank_process& x, std::uint32_t calls, std::mt19937& random) {
  const auto wanted = x.calls() + calls;
  const auto hung = clock::now() + std::chrono::milliseconds{hang_limit_ms};
  while (x.calls() < wanted && clock::now() < hung)
    std::this_thread::yield();
  REQUIRE(x.calls() >= wanted);
  const auto end = clock::now() + std::chrono::microseconds{random() % 1500};
  while (clock::now() < end)
    ;
}

} // namespace

TEST_CASE(
    "a rank that is killed in the middle of any call is named by the survivors, who go on at once and leak nothing") {
  constexpr std::size_t world_size = 4;
  const auto seed = std::random_device{}();
  std::cout << "seed of the kills: " << seed << '\n';
  INFO("seed ", seed);
  std::mt19937 random{seed};
  auto members = start(world_size);
  std::uint64_t generation = 0;
  auto longest = 0ns;
  auto kills = 0;
  // Rank 0 of the first generation survives all of them.
  std::vector<look> of_first_member;
  for (int round = 0; round < 3; ++round) {
    for (std::size_t kind = 0; kind < all_kinds().size(); ++kind) {
      INFO(all_kinds()[kind].name, ", round ", round);
      form(members, ++generation);
      for (const auto& x : members)
        x->tell("repeat " + std::to_string(kind));
      const auto victim = 1 + random() % (world_size - 1);
      wait_for_calls(*members[0], static_cast<std::uint32_t>(random() % 10), random);
      const auto begin = clock::now();
      members[victim]->signal(SIGKILL);
      ++kills;
      for (std::size_t rank = 0; rank < world_size; ++rank) {
        if (rank == victim)
          continue;
        const auto said = members[rank]->hear().text;
        INFO("victim ", victim, ", rank ", rank, ": ", said);
        CHECK(said.starts_with("aborted "));
        CHECK(mentions(said, "lost rank " + std::to_string(victim) + " (its process has ended)"));
        CHECK(mentions(said, all_kinds()[kind].text == "receive" ? "#" : all_kinds()[kind].text + " #"));
      }
      const auto took = clock::now() - begin;
      CHECK(took < 5s);
      longest = std::max<std::chrono::nanoseconds>(longest, took);
      members.erase(members.begin() + static_cast<std::ptrdiff_t>(victim));
      expect_fine(members, "leave");
      form(members, ++generation);
      expect_fine(members, "verify");
      expect_fine(members, "leave");
      members.push_back(std::make_unique<rank_process>());
    }
    of_first_member.push_back(look_at(*members[0]));
  }
  CHECK(kills >= 30);
  // It has its own pool, and nothing from earlier generations.
  for (const auto& x : of_first_member) {
    CHECK(x.shared_mappings == 1);
    CHECK(x.descriptors == of_first_member[0].descriptors);
    CHECK(x.shared_bytes == of_first_member[0].shared_bytes);
    // The allocator's own mappings vary.
    CHECK(x.mappings < of_first_member[0].mappings + 10);
  }
  CHECK(of_first_member[0].shared_bytes < 64u << 20);
  std::cout << kills << " kills; from the kill to the last survivor's error at most "
            << std::chrono::duration_cast<std::chrono::microseconds>(longest).count() << " us; a survivor holds "
            << of_first_member.back().descriptors << " descriptors, " << of_first_member.back().mappings
            << " mappings, " << of_first_member.back().shared_bytes << " shared bytes\n";
}

TEST_CASE("a frozen rank is named when the deadline expires, and changes no byte of the survivors when it resumes") {
  const auto seed = std::random_device{}();
  std::cout << "seed of the freezes: " << seed << '\n';
  INFO("seed ", seed);
  std::mt19937 random{seed};
  std::uint64_t generation = 0;
  for (std::size_t kind = 0; kind < all_kinds().size(); kind += 1 + random() % 3) {
    INFO(all_kinds()[kind].name);
    auto members = start(3);
    form(members, ++generation);
    expect_fine(members, "hold");
    expect_fine(members, "hurry");
    const auto before = ask_all(members, "digest");
    CHECK(before[0] != before[1]);
    for (const auto& x : members)
      x->tell("repeat " + std::to_string(kind));
    wait_for_calls(*members[0], static_cast<std::uint32_t>(random() % 5), random);
    members[2]->freeze();
    for (std::size_t rank : {0u, 1u}) {
      const auto said = members[rank]->hear().text;
      INFO("rank ", rank, ": ", said);
      CHECK((said.starts_with("timed_out ") || said.starts_with("aborted ")));
      CHECK(mentions(said, "within 600 ms"));
      // In the ring, the other rank's deadline may expire first.
      CHECK(mentions(said, all_kinds()[kind].text == "receive" ? "from rank 2" : "rank 2 (last in "));
    }
    // It is not even killed, and the others continue.
    ranks survivors;
    survivors.push_back(std::move(members[0]));
    survivors.push_back(std::move(members[1]));
    const auto& revived = *members[2];
    CHECK(survivors[0]->ask("digest") == before[0]);
    form(survivors, ++generation);
    expect_fine(survivors, "verify");
    revived.signal(SIGCONT);
    const auto said = revived.hear().text;
    INFO("revived: ", said);
    CHECK(said.starts_with("aborted "));
    CHECK(mentions(said, "gave up"));
    CHECK(mentions(revived.ask("attack"), " files refused"));
    expect_fine(survivors, "verify");
    CHECK(survivors[0]->ask("digest") == before[0]);
    CHECK(survivors[1]->ask("digest") == before[1]);
  }
}

TEST_CASE("holders of a peer's descriptors cannot change its files") {
  auto members = start(3);
  form(members, 1);
  expect_fine(members, "verify");
  // Two files of each of two peers.
  CHECK(ask_all(members, "attack") == std::vector<std::string>(3, "4 files refused"));
  expect_fine(members, "verify");
}

TEST_CASE("a group whose other ranks are all killed at once ends in every survivor") {
  auto members = start(4);
  form(members, 1);
  for (const auto& x : members)
    x->tell("repeat 0");
  std::mt19937 random{1};
  wait_for_calls(*members[0], 3, random);
  for (auto rank : {1u, 2u, 3u})
    members[rank]->signal(SIGKILL);
  CHECK(mentions(members[0]->hear().text, "(its process has ended)"));
}

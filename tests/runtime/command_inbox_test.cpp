#include "worker/command_inbox.hpp"

#include <doctest/doctest.h>

#include <thread>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;
using kinds = std::vector<command_kind>;

kinds kinds_of(const std::vector<control_command>& commands) {
  kinds result;
  for (const auto& each : commands)
    result.push_back(each.kind);
  return result;
}

control_command numbered(std::uint64_t sequence, command_kind kind = command_kind::checkpoint) {
  return {run_id{"r"}, sequence, kind, generation_id{1}};
}

TEST_CASE("commands are taken by number, and can be taken in parts") {
  command_inbox inbox;
  CHECK(inbox.highest() == 0);
  inbox.add(numbered(1));
  inbox.add(numbered(2, command_kind::stop));
  inbox.add(numbered(3));
  CHECK(inbox.highest() == 3);
  CHECK(kinds_of(inbox.take(0, 1, 0ms)) == kinds{command_kind::checkpoint});
  CHECK(kinds_of(inbox.take(1, 3, 0ms)) == kinds{command_kind::stop, command_kind::checkpoint});
  CHECK(kinds_of(inbox.take(0, 3, 0ms)) ==
        kinds{command_kind::checkpoint, command_kind::stop, command_kind::checkpoint});
}

TEST_CASE("a command that comes twice, or before its predecessor, is dropped") {
  command_inbox inbox;
  inbox.add(numbered(2, command_kind::stop));
  CHECK(inbox.highest() == 0);
  inbox.add(numbered(0, command_kind::stop));
  CHECK(inbox.highest() == 0);
  inbox.add(numbered(1));
  inbox.add(numbered(1, command_kind::stop));
  CHECK(inbox.highest() == 1);
  CHECK(kinds_of(inbox.take(0, 1, 0ms)) == kinds{command_kind::checkpoint});
}

TEST_CASE("commands that do not come in time are told by nothing") {
  command_inbox inbox;
  CHECK(inbox.take(0, 1, 1ms).empty());
  inbox.add(numbered(1));
  CHECK(inbox.take(0, 2, 1ms).empty());
}

TEST_CASE("taking waits for commands that another rank has seen") {
  command_inbox inbox;
  inbox.add(numbered(1));
  auto actor = std::thread{[&] {
    inbox.add(numbered(2, command_kind::stop));
    inbox.add(numbered(3));
  }};
  CHECK(kinds_of(inbox.take(1, 3, 60s)) == kinds{command_kind::stop, command_kind::checkpoint});
  actor.join();
}

} // namespace

} // namespace troupe::runtime

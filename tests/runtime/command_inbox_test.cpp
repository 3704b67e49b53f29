#include "worker/life/command_inbox.hpp"

#include <doctest/doctest.h>

#include <thread>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;
using command = decltype(control_command::what);
using all = std::vector<command>;

constexpr auto stop = stop_command{};
constexpr auto save = checkpoint_command{};

all contents_of(const std::vector<control_command>& commands) {
  all result;
  for (const auto& each : commands)
    result.push_back(each.what);
  return result;
}

control_command numbered(std::uint64_t sequence, command what = save) {
  return {run_id{"r"}, sequence, what};
}

TEST_CASE("commands are taken by number, and can be taken in parts") {
  command_inbox inbox;
  CHECK(inbox.highest() == 0);
  inbox.add(numbered(1));
  inbox.add(numbered(2, stop));
  inbox.add(numbered(3));
  CHECK(inbox.highest() == 3);
  CHECK(contents_of(inbox.take(0, 1, 0ms)) == all{save});
  CHECK(contents_of(inbox.take(1, 3, 0ms)) == all{stop, save});
  CHECK(contents_of(inbox.take(0, 3, 0ms)) == all{save, stop, save});
}

TEST_CASE("a command that comes twice, or before its predecessor, is dropped") {
  command_inbox inbox;
  inbox.add(numbered(2, stop));
  CHECK(inbox.highest() == 0);
  inbox.add(numbered(0, stop));
  CHECK(inbox.highest() == 0);
  inbox.add(numbered(1));
  inbox.add(numbered(1, stop));
  CHECK(inbox.highest() == 1);
  CHECK(contents_of(inbox.take(0, 1, 0ms)) == all{save});
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
    inbox.add(numbered(2, stop));
    inbox.add(numbered(3));
  }};
  CHECK(contents_of(inbox.take(1, 3, 60s)) == all{stop, save});
  actor.join();
}

} // namespace

} // namespace troupe::runtime

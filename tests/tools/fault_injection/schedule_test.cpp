#include <schedule.hpp>

#include <doctest/doctest.h>

#include <map>
#include <string>

using namespace troupe::chaos;
using namespace std::chrono_literals;

namespace {

std::vector<planned_fault> first(schedule plan, std::size_t number) {
  std::vector<planned_fault> result;
  while (result.size() < number)
    result.push_back(plan.next());
  return result;
}

std::vector<weighted_kind> every_kind() {
  std::vector<weighted_kind> result;
  for (auto kind : all_fault_kinds)
    result.push_back({kind, 1});
  return result;
}

} // namespace

TEST_CASE("a seed determines all faults, and different seeds give different ones") {
  auto plan = [](std::uint64_t seed) { return first(schedule{seed, 1s, every_kind()}, 50); };
  CHECK(plan(7) == plan(7));
  CHECK(plan(7) != plan(8));
}

TEST_CASE("a seed gives the same faults in every build") {
  auto kinds = every_kind();
  kinds.resize(7);
  auto plan = first(schedule{1, 1s, kinds}, 3);
  CHECK(plan[0] == planned_fault{144ms, fault_kind::kill, 8323445853463659930u, 0ms});
  CHECK(plan[1] == planned_fault{432ms, fault_kind::fill_disk, 8683844110200328628u, 686ms});
  CHECK(plan[2] == planned_fault{844ms, fault_kind::freeze_node, 1650120169738923776u, 2269ms});
}

TEST_CASE("intervals have the requested mean and are bounded") {
  auto total = 0ms;
  auto longest = 0ms;
  for (const auto& fault : first(schedule{3, 1s, every_kind()}, 20'000)) {
    total += fault.after;
    longest = std::max(longest, fault.after);
  }
  CHECK(total / 20'000 > 970ms);
  CHECK(total / 20'000 < 1030ms);
  CHECK(longest > 4s);
  CHECK(longest <= 8s);
}

TEST_CASE("only requested kinds occur, in proportion to their weights") {
  std::map<fault_kind, int> times;
  for (const auto& fault : first(schedule{4, 1s, {{fault_kind::kill, 3}, {fault_kind::cut, 1}}}, 10'000))
    ++times[fault.kind];
  CHECK(times.size() == 2);
  CHECK(times[fault_kind::kill] > 7300);
  CHECK(times[fault_kind::kill] < 7700);
}

TEST_CASE("the times of faults do not depend on their kinds") {
  auto one = first(schedule{5, 1s, {{fault_kind::kill, 1}}}, 100);
  auto all = first(schedule{5, 1s, every_kind()}, 100);
  for (std::size_t i = 0; i < one.size(); ++i)
    CHECK(one[i].after == all[i].after);
}

TEST_CASE("a fault that is undone lasts as long as its kind allows, and a kill is permanent") {
  for (const auto& fault : first(schedule{6, 1s, every_kind()}, 2000)) {
    INFO(std::string{to_string(fault.kind)});
    switch (fault.kind) {
    case fault_kind::kill:
    case fault_kind::kill_two:
    case fault_kind::reset:
    case fault_kind::flood:
      CHECK(fault.lasts == 0ms);
      break;
    case fault_kind::freeze:
    case fault_kind::freeze_node:
    case fault_kind::freeze_all_nodes:
    case fault_kind::freeze_driver:
    case fault_kind::cut:
    case fault_kind::freeze_all:
    case fault_kind::cut_control:
      CHECK(fault.lasts >= 100ms);
      CHECK(fault.lasts <= 4s);
      break;
    case fault_kind::cut_data:
      CHECK(fault.lasts >= 100ms);
      CHECK(fault.lasts <= 6s);
      break;
    case fault_kind::freeze_disk:
    case fault_kind::cpu_storm:
    case fault_kind::unread_log:
      CHECK(fault.lasts >= 500ms);
      CHECK(fault.lasts <= 4s);
      break;
    case fault_kind::kill_node:
    case fault_kind::fill_disk:
    case fault_kind::restart_driver:
      CHECK(fault.lasts >= 500ms);
      CHECK(fault.lasts <= 3s);
      break;
    }
  }
}

TEST_CASE("kinds are parsed with and without weights") {
  CHECK(parse_kinds("kill") == std::vector<weighted_kind>{{fault_kind::kill, 1}});
  CHECK(parse_kinds("kill-two=3,freeze,kill=0") ==
        std::vector<weighted_kind>{{fault_kind::kill_two, 3}, {fault_kind::freeze, 1}});
  for (auto kind : all_fault_kinds)
    CHECK(parse_kinds(to_string(kind)) == std::vector<weighted_kind>{{kind, 1}});
}

TEST_CASE("unknown kinds, invalid weights and empty texts are rejected") {
  for (const auto* text :
       {"", ",", "kil", "kill,,freeze", "kill=", "kill=x", "kill=-1", "kill=2x", "kill=0", "kill=9999999"})
    CHECK_MESSAGE(!parse_kinds(text), text);
}

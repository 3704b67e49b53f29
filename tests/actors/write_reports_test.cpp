#include "trainer/write_reports.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

using namespace troupe;
using namespace troupe::actors;

namespace {

using kind = write_reports::kind;

struct told_users {
  std::vector<std::pair<severity, std::string>> all;
  write_reports reports{[this](severity how, std::string text) { all.emplace_back(how, std::move(text)); }};
};

const expected<void> full = fail(errc::io_error, "the disk is full");

} // namespace

TEST_CASE("users hear once that files of a kind cannot be written, and once that they can again") {
  told_users t;
  for (auto i = 0; i < 3; ++i)
    t.reports.note(kind::logs, full, 0);
  REQUIRE(t.all.size() == 1);
  CHECK(t.all[0] == std::pair{severity::warning, std::string{"the disk is full: lines are missing in the workers' "
                                                             "logs, and training goes on"}});
  t.reports.note(kind::metrics, {}, 0);
  CHECK(t.all.size() == 1);
  for (auto i = 0; i < 3; ++i)
    t.reports.note(kind::logs, {}, 0);
  REQUIRE(t.all.size() == 2);
  CHECK(t.all[1] == std::pair{severity::note, std::string{"files can be written again (the disk is full)"}});
}

TEST_CASE("lost lines are counted until the disk takes others, or the run ends") {
  told_users t;
  const auto says = [&t](const std::string& part) { return t.all.back().second.find(part) != std::string::npos; };
  t.reports.note(kind::metrics, full, 2);
  t.reports.note(kind::metrics, full, 3);
  CHECK(t.all.size() == 1);
  t.reports.note(kind::metrics, {}, 0);
  REQUIRE(t.all.size() == 3);
  CHECK(says("5 lines of metrics.jsonl, times.jsonl and ledger.jsonl are lost"));
  t.reports.report_dropped();
  CHECK(t.all.size() == 3);
  t.reports.report_dropped(4);
  REQUIRE(t.all.size() == 4);
  CHECK(says("4 lines"));
}

#include "actor_fixture.hpp"
#include "trainer/control_journal.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sys/stat.h>

#include "scratch_directory.hpp"

using namespace troupe;
using namespace troupe::actors;
using namespace troupe::testing;

namespace {

namespace fs = std::filesystem;

run_journal sample(std::uint64_t generation, std::uint64_t claim = 1) {
  run_journal result;
  result.run = run_id{"0123"};
  result.secret = std::string(64, 'a');
  result.claim = {claim, "tag"};
  result.identity = {"c0ffee", 7, 24, 1, R"({"lr":0.5})"};
  result.nodes = {{"10.0.0.7:4000", {"host-a", "10.0.0.7", 4711, {16, 2}}}};
  result.next_worker = 1030;
  auto& state = result.state;
  state.failures = {3, {40}, {6}};
  state.attempt = 2;
  state.generation = {generation};
  state.began_at = {40};
  state.members = {{{worker_id{3}, rank_id{0}, 0, 0, 2}, step_id{40}, 0}, {{worker_id{5}, rank_id{1}, 0, 1, 2}, {}, 2}};
  state.plans.emplace_back().data_fingerprint = "d1";
  state.commands = 9;
  state.outstanding = {{run_id{"0123"}, 8, checkpoint_command{}}, {run_id{"0123"}, 9, regroup_command{{7}}}};
  state.workers = 4;
  state.asked = run_course::request::pause;
  state.numerics = R"({"libm":"2.36"})";
  auto& history = result.history;
  history.failures.emplace_back().reason = {errc::worker_lost, "it ended"};
  history.generations.emplace_back().generation = {3};
  history.workers = {{worker_id{3}, rank_id{0}, "host-a", "10.0.0.7:4000", 17}};
  history.restarts = 1;
  history.due_checkpoints = {4, 1, 2};
  history.resumed_from_step = 20;
  return result;
}

class journal_files : public actor_fixture {
 public:
  [[nodiscard]] expected<std::optional<run_journal>> read() { return control_journal{system(), here.path()}.read(); }
  [[nodiscard]] fs::path slot(int index) const { return here.path() / (".journal-" + std::to_string(index)); }
  void change_byte(const fs::path& path, std::streamoff at) const {
    auto file = std::fstream{path, std::ios::in | std::ios::out | std::ios::binary};
    file.seekp(at);
    file.put('\x55');
  }

  scratch_directory here;
};

} // namespace

TEST_CASE_FIXTURE(journal_files, "what was written last is read, and only its owner can read it") {
  CHECK_FALSE(control_journal::exists(here.path()));
  CHECK(read().value() == std::nullopt);
  auto journal = control_journal{system(), here.path()};
  for (std::uint64_t generation = 1; generation <= 5; ++generation) {
    REQUIRE(journal.write(sample(generation)));
    CHECK(read().value() == sample(generation));
  }
  CHECK(control_journal::exists(here.path()));
  struct stat status {};
  for (auto i : {0, 1}) {
    REQUIRE(::stat(slot(i).c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
  }
  journal.remove();
  CHECK_FALSE(control_journal::exists(here.path()));
}

TEST_CASE_FIXTURE(journal_files, "another driver goes on with the journal of the one before") {
  REQUIRE(control_journal{system(), here.path()}.write(sample(1)));
  auto next = control_journal{system(), here.path()};
  REQUIRE(next.read().value() == sample(1));
  REQUIRE(next.write(sample(1, 2)));
  REQUIRE(next.write(sample(2, 2)));
  CHECK(read().value() == sample(2, 2));
}

TEST_CASE_FIXTURE(journal_files, "a journal that was torn while it was written leaves the one before") {
  auto journal = control_journal{system(), here.path()};
  REQUIRE(journal.write(sample(1)));
  REQUIRE(journal.write(sample(2)));
  SUBCASE("in its content") {
    change_byte(slot(0), 200);
  }
  SUBCASE("in its first line") {
    change_byte(slot(0), 3);
  }
  SUBCASE("it is short") {
    fs::resize_file(slot(0), 150);
  }
  SUBCASE("it is empty") {
    fs::resize_file(slot(0), 0);
  }
  CHECK(read().value() == sample(1));
}

TEST_CASE_FIXTURE(journal_files, "a journal of which nothing is whole is damaged") {
  auto journal = control_journal{system(), here.path()};
  REQUIRE(journal.write(sample(1)));
  change_byte(slot(1), 200);
  CHECK(read().error().code == errc::damaged);
}

TEST_CASE_FIXTURE(journal_files, "a driver with a smaller claim writes no more") {
  auto journal = control_journal{system(), here.path()};
  REQUIRE(journal.write(sample(1)));
  REQUIRE(control_journal{system(), here.path()}.read());
  auto other = control_journal{system(), here.path()};
  REQUIRE(other.read());
  REQUIRE(other.write(sample(1, 2)));
  CHECK(journal.write(sample(2)).error().code == errc::superseded);
  CHECK(read().value() == sample(1, 2));
}

TEST_CASE_FIXTURE(journal_files, "a directory that cannot be written to is named") {
  auto journal = control_journal{system(), here.path() / "nowhere"};
  const auto done = journal.write(sample(1));
  REQUIRE_FALSE(done);
  CHECK(done.error().code == errc::io_error);
  CHECK(done.error().message.find("nowhere") != std::string::npos);
}

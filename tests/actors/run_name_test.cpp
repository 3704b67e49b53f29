#include <troupe/actors/run_name.hpp>

#include "scratch.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

using namespace troupe;
using namespace troupe::actors;
using serialization::overwrite_file;
using serialization::scratch_directory;
namespace fs = std::filesystem;

namespace {

const auto now = std::chrono::system_clock::time_point{std::chrono::seconds{1'795'689'600}};

} // namespace

TEST_CASE("a fresh run is named for its program and the time, and its name can name a run") {
  const auto name = fresh_run_name("charlm", now);
  // The hour is that of the time zone.
  CHECK(name.starts_with("charlm-2026112"));
  CHECK(name.size() == std::string{"charlm-20261126-104000"}.size());
  CHECK(fresh_run_name("my program+", now).starts_with("my_program_-2026"));
  CHECK(fresh_run_name("", now).starts_with("run-2026"));
  CHECK(fresh_run_name(".hidden", now).starts_with("run.hidden-2026"));
  CHECK(fresh_run_name(std::string(500, 'x'), now).size() <= 128);
}

TEST_CASE("runs that begin in the same second get different directories") {
  auto scratch = scratch_directory{};
  const auto storage = scratch.path() / "a" / "runs";
  std::set<std::string> names;
  for (int i = 0; i < 3; ++i) {
    const auto name = reserve_run(storage, "p", now);
    CHECK(fs::is_directory(storage / name));
    names.insert(name);
  }
  CHECK(names.size() == 3);
  const auto first = fresh_run_name("p", now);
  CHECK(names == std::set<std::string>{first, first + "-2", first + "-3"});
}

TEST_CASE("where no directory can be made, the run still has a name") {
  auto scratch = scratch_directory{};
  overwrite_file(scratch.path() / "file", "text");
  CHECK(reserve_run(scratch.path() / "file", "p", now) == fresh_run_name("p", now));
}

TEST_CASE("the link leads to the run that was begun last, and nothing else is overwritten") {
  auto scratch = scratch_directory{};
  const auto link = scratch.path() / "latest";
  for (const auto* name : {"one", "two"}) {
    fs::create_directory(scratch.path() / name);
    REQUIRE(point_latest_to(scratch.path() / name));
    CHECK(fs::is_symlink(link));
    CHECK(fs::read_symlink(link) == name);
  }
  fs::remove(link);
  overwrite_file(link, "the user's");
  REQUIRE(point_latest_to(scratch.path() / "one"));
  CHECK(serialization::read_file(link) == "the user's");
  CHECK(std::distance(fs::directory_iterator{scratch.path()}, fs::directory_iterator{}) == 3);
}

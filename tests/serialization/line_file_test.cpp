#include <troupe/serialization/files/line_file.hpp>

#include "memory_file_system.hpp"
#include "scratch.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <string>

using namespace troupe;
using namespace troupe::serialization;
namespace fs = std::filesystem;

TEST_CASE("lines are appended to a file that may exist, and to none before the first") {
  auto scratch = scratch_directory{};
  const auto path = scratch.path() / "lines";
  auto file = line_file{path};
  CHECK(file.append(""));
  CHECK_FALSE(fs::exists(path));
  CHECK(file.append("a\nb\n"));
  auto moved = std::move(file);
  CHECK(moved.append("c\n"));
  CHECK(read_file(path) == "a\nb\nc\n");
  CHECK(line_file{path}.append("d\n"));
  CHECK(read_file(path) == "a\nb\nc\nd\n");
  CHECK(moved.take_dropped() == 0);
}

TEST_CASE("a file that cannot be opened says so, and is tried again") {
  auto scratch = scratch_directory{};
  const auto path = scratch.path() / "later" / "lines";
  auto file = line_file{path};
  const auto failed = file.append("a\n");
  REQUIRE_FALSE(failed);
  CHECK(failed.error().code == errc::io_error);
  CHECK(failed.error().message.find(path.string()) != std::string::npos);
  fs::create_directory(path.parent_path());
  CHECK(file.append("b\n"));
  CHECK(read_file(path) == "a\nb\n");
}

TEST_CASE("a full disk gets whole lines only, and the rest when it has room again") {
  auto scratch = scratch_directory{};
  auto disk = testing::memory_file_system{scratch.path(), "size=8k"};
  if (!disk.mounted()) {
    std::puts("SKIP: file systems may not be mounted here");
    return;
  }
  const auto path = scratch.path() / "lines";
  auto file = line_file{path};
  auto all = std::string{};
  auto failures = 0;
  for (auto i = 0; i < 40; ++i) {
    const auto lines = std::to_string(i) + std::string(700, '.') + "\n" + std::to_string(i) + ", too\n";
    all += lines;
    failures += file.append(lines) ? 0 : 1;
  }
  CHECK(failures > 20);
  const auto there = read_file(path);
  CHECK(there.ends_with("\n"));
  CHECK(all.starts_with(there));
  REQUIRE(disk.resize("size=64m"));
  CHECK(file.append("the end\n"));
  CHECK(read_file(path) == all + "the end\n");
  CHECK(file.take_dropped() == 0);
}

TEST_CASE("what waits is limited: later lines are dropped and counted, and what waits can be taken away") {
  auto file = line_file{"/proc/no/such/directory"};
  const auto lines = std::string(line_file::most_waiting_bytes / 4 - 1, '.') + "\n";
  for (auto i = 0; i < 4; ++i)
    CHECK_FALSE(file.append(lines));
  CHECK(file.take_dropped() == 0);
  CHECK_FALSE(file.append("one\ntwo\n"));
  CHECK(file.take_dropped() == 2);
  CHECK(file.take_dropped() == 0);
  CHECK(file.take_waiting().size() == line_file::most_waiting_bytes);
  CHECK(file.append(""));
}

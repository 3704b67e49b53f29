#include <troupe/serialization/files/durable_file.hpp>

#include "scratch.hpp"

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::serialization;

namespace {

std::size_t entries_in(const std::filesystem::path& path) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator{path}, {}));
}

} // namespace

TEST_CASE("a durable file is created and replaced, and leaves no other file") {
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "result.json";
  for (auto text : {std::string{"first"}, std::string{}, std::string(100'000, 'x')}) {
    REQUIRE(write_file_durably(path, text));
    CHECK(read_file(path) == text);
    CHECK(entries_in(scratch.path()) == 1);
  }
}

TEST_CASE("a durable file in a missing directory is not found") {
  auto scratch = scratch_directory{};
  auto written = write_file_durably(scratch.path() / "absent" / "file", "text");
  REQUIRE_FALSE(written);
  CHECK(written.error().code == errc::not_found);
  CHECK(written.error().message.find("absent") != std::string::npos);
}

TEST_CASE("a durable file that cannot be renamed leaves nothing behind") {
  auto scratch = scratch_directory{};
  std::filesystem::create_directories(scratch.path() / "taken" / "inside");
  auto written = write_file_durably(scratch.path() / "taken", "text");
  REQUIRE_FALSE(written);
  CHECK(written.error().code == errc::io_error);
  CHECK(entries_in(scratch.path()) == 1);
}

TEST_CASE("directories are created with their missing parents, idempotently") {
  auto scratch = scratch_directory{};
  for (auto path : {scratch.path() / "a" / "b" / "c", scratch.path() / "d" / "e" / ""}) {
    REQUIRE(create_directories_durably(path));
    REQUIRE(create_directories_durably(path));
    CHECK(std::filesystem::is_directory(path));
  }
}

TEST_CASE("a directory below a file is an error that names it") {
  auto scratch = scratch_directory{};
  overwrite_file(scratch.path() / "file", "text");
  auto made = create_directories_durably(scratch.path() / "file" / "below");
  REQUIRE_FALSE(made);
  CHECK(made.error().message.find("file") != std::string::npos);
}

#include "trainer/tensorboard_log.hpp"

#include <scratch_directory.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using namespace std::chrono_literals;
using namespace troupe;
using namespace troupe::actors;

namespace fs = std::filesystem;

namespace {

using troupe::serialization::wall_time;
using troupe::testing::read_file;
using troupe::testing::scratch_directory;

constexpr auto now = wall_time{1'795'689'600s};

metrics_batch batch_of(std::uint32_t rank, const std::vector<std::uint64_t>& steps) {
  metrics_batch result;
  result.rank = {rank};
  for (auto step : steps)
    result.rows.push_back({{step}, 0, 1'795'689'600'000'000, {{"loss", 1.0 / static_cast<double>(step)}}});
  return result;
}

/// In the order in which TensorBoard reads them.
std::vector<fs::path> files_in(const fs::path& directory) {
  std::vector<fs::path> result;
  for (const auto& each : fs::directory_iterator{directory})
    result.push_back(each.path());
  std::ranges::sort(result);
  return result;
}

/// The sizes of a file's whole records.
std::vector<std::uint64_t> records_in(const fs::path& path) {
  const auto text = read_file(path);
  std::vector<std::uint64_t> result;
  for (std::size_t at = 0; at + 12 <= text.size();) {
    std::uint64_t size = 0;
    std::memcpy(&size, text.data() + at, sizeof(size));
    at += 12 + size + 4;
    if (at <= text.size())
      result.push_back(size);
  }
  return result;
}

} // namespace

TEST_CASE("rank 0's reports and every rank's times are recorded, behind a version and a start") {
  const auto scratch = scratch_directory{};
  auto log = tensorboard_log{scratch.path() / "tensorboard", {1}};
  CHECK_FALSE(fs::exists(scratch.path() / "tensorboard"));
  REQUIRE(log.append(batch_of(0, {1, 2}), now));
  REQUIRE(log.append(batch_of(1, {1, 2}), now));
  auto times = batch_of(1, {});
  times.times = {{{1}, {1}, {1}, {2}, 2, 3000, 2000, 1000}};
  REQUIRE(log.append(times, now));
  const auto files = files_in(scratch.path() / "tensorboard");
  REQUIRE(files.size() == 1);
  CHECK(files[0].filename().string().starts_with("events.out.tfevents.1795689600."));
  CHECK(records_in(files[0]).size() == 5);
  CHECK(read_file(files[0]).find("troupe/wait_ms/rank_1") != std::string::npos);
}

TEST_CASE("another writer has a later file, also within a second, and leaves earlier steps out") {
  const auto scratch = scratch_directory{};
  for (int i = 0; i < 3; ++i) {
    auto log = tensorboard_log{scratch.path(), {5}};
    REQUIRE(log.append(batch_of(0, {4, 5, 6}), now));
  }
  const auto files = files_in(scratch.path());
  REQUIRE(files.size() == 3);
  for (int i = 0; i < 3; ++i) {
    CHECK(files[i].filename().string().starts_with("events.out.tfevents." + std::to_string(1'795'689'600 + i)));
    CHECK(records_in(files[i]).size() == 4);
  }
}

TEST_CASE("what the disk does not take waits, and is dropped and counted beyond a limit") {
  const auto scratch = scratch_directory{};
  // A file where the directory should be.
  std::ofstream{scratch.path() / "tensorboard"} << "in the way";
  auto log = tensorboard_log{scratch.path() / "tensorboard", {1}};
  std::vector<std::uint64_t> steps(1000);
  for (std::size_t i = 0; i < steps.size(); ++i)
    steps[i] = i + 1;
  const auto first = log.append(batch_of(0, steps), now);
  REQUIRE_FALSE(first);
  CHECK(first.error().code == errc::io_error);
  CHECK(log.take_dropped() == 0);
  for (int i = 0; i < 200; ++i)
    CHECK_FALSE(log.append(batch_of(0, steps), now));
  const auto dropped = log.take_dropped();
  CHECK(dropped > 0);
  CHECK(dropped < 201'000);
  fs::remove(scratch.path() / "tensorboard");
  REQUIRE(log.append(batch_of(0, {}), now));
  CHECK(records_in(files_in(scratch.path() / "tensorboard").at(0)).size() == 201'000 - dropped + 2);
}

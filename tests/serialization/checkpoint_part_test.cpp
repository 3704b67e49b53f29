#include <troupe/serialization/checkpoint/part.hpp>
#include <troupe/serialization/files/digest.hpp>

#include "memory_file_system.hpp"
#include "scratch.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <sys/resource.h>
#include <thread>

using namespace troupe;
using namespace troupe::serialization;

namespace {

std::vector<part_report> write_all_parts(const std::filesystem::path& directory, sample_state& state,
                                         const chunk_plan& plan) {
  auto result = std::vector<part_report>{};
  for (std::uint32_t part = 0; part < plan.part_sizes_bytes.size(); ++part) {
    auto report = write_part(directory, part, plan, state.views());
    REQUIRE(report);
    result.push_back(std::move(*report));
  }
  return result;
}

} // namespace

TEST_CASE("a part holds its chunks at their offsets and zeros elsewhere") {
  auto scratch = scratch_directory{};
  auto state = sample_state{assorted_specs()};
  auto plan = plan_chunks(state.specs(), 3, small_limit_bytes);
  auto reports = write_all_parts(scratch.path() / "deep" / "attempt", state, plan);
  for (const auto& report : reports) {
    CAPTURE(report.file);
    auto expectation = std::string(plan.part_sizes_bytes[report.part], '\0');
    auto planned = plan.chunks_of(report.part);
    REQUIRE(report.chunks.size() == planned.size());
    for (std::size_t i = 0; i < planned.size(); ++i) {
      const auto& chunk = planned[i];
      auto bytes = std::span{state.bytes(chunk.tensor)}.subspan(chunk.tensor_offset_bytes, chunk.length_bytes);
      std::memcpy(expectation.data() + chunk.offset_bytes, bytes.data(), bytes.size());
      CHECK(report.chunks[i] == chunk_report{chunk.tensor, chunk.chunk, xxh3(bytes)});
    }
    CHECK(report.size_bytes == expectation.size());
    CHECK(read_file(scratch.path() / "deep" / "attempt" / report.file) == expectation);
  }
}

TEST_CASE("several workers write their parts at once") {
  auto scratch = scratch_directory{};
  auto directory = scratch.path() / "a" / "b";
  auto state = sample_state{assorted_specs()};
  auto plan = plan_chunks(state.specs(), 7, small_limit_bytes);
  auto reports = std::vector<part_report>(7);
  {
    auto writers = std::vector<std::jthread>{};
    for (std::uint32_t part = 0; part < 7; ++part)
      writers.emplace_back([&, part] {
        if (auto report = write_part(directory, part, plan, state.views()))
          reports[part] = std::move(*report);
      });
  }
  auto content = manifest{};
  CHECK(add_parts(content, state.specs(), plan, reports));
}

TEST_CASE("an existing part is never continued") {
  auto scratch = scratch_directory{};
  auto state = sample_state{assorted_specs()};
  auto plan = plan_chunks(state.specs(), 1);
  REQUIRE(write_part(scratch.path(), 0, plan, state.views()));
  auto again = write_part(scratch.path(), 0, plan, state.views());
  REQUIRE_FALSE(again);
  CHECK(again.error().code == errc::already_exists);
  CHECK(again.error().message.find("part-0000.bin") != std::string::npos);
}

TEST_CASE("tensors that were not planned are refused before anything is written") {
  auto scratch = scratch_directory{};
  auto state = sample_state{assorted_specs()};
  auto plan = plan_chunks(state.specs(), 1);
  auto views = state.views();
  views.pop_back();
  auto fewer = write_part(scratch.path() / "x", 0, plan, views);
  REQUIRE_FALSE(fewer);
  CHECK(fewer.error().code == errc::invalid_argument);
  auto beyond = write_part(scratch.path() / "x", 1, plan, state.views());
  REQUIRE_FALSE(beyond);
  CHECK(beyond.error().code == errc::invalid_argument);
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "x"));
}

TEST_CASE("reports that do not match the plan are a mismatch that names the part") {
  auto scratch = scratch_directory{};
  auto state = sample_state{assorted_specs()};
  auto plan = plan_chunks(state.specs(), 3, small_limit_bytes);
  const auto good = write_all_parts(scratch.path(), state, plan);
  auto refused = [&](auto change) {
    auto reports = good;
    change(reports);
    auto content = manifest{};
    auto added = add_parts(content, state.specs(), plan, reports);
    return !added && added.error().code == errc::mismatch && added.error().message.find("part ") != std::string::npos &&
           content == manifest{};
  };
  CHECK(refused([](auto& x) { x.pop_back(); }));
  CHECK(refused([](auto& x) { x[0] = x[1]; }));
  CHECK(refused([](auto& x) { x[0].part = 3; }));
  CHECK(refused([](auto& x) { x[1].size_bytes += 1; }));
  CHECK(refused([](auto& x) { x[1].chunks.pop_back(); }));
  CHECK(refused([](auto& x) { x[1].chunks[0].chunk += 1; }));
  CHECK(refused([](auto& x) { x[1].chunks[0].tensor += 1; }));
}

TEST_CASE("part names sort as their numbers do") {
  CHECK(part_file_name(0) == "part-0000.bin");
  CHECK(part_file_name(9999) == "part-9999.bin");
  CHECK(part_file_name(10000) == "part-10000.bin");
}

TEST_CASE("a full disk is an error that says what to do, before anything is written") {
  auto scratch = scratch_directory{};
  auto disk = testing::memory_file_system{scratch.path() / "disk", "size=64k"};
  if (!disk.mounted()) {
    std::puts("SKIP: no right to mount a small file system");
    return;
  }
  auto state = sample_state{{{"big", dtype::u8, {200'000}}}};
  auto report = write_part(disk.path() / "attempt", 0, plan_chunks(state.specs(), 1), state.views());
  REQUIRE_FALSE(report);
  CHECK(report.error().code == errc::io_error);
  CHECK(report.error().message.find("part-0000.bin: No space left on device") != std::string::npos);
  CHECK(report.error().message.find("free space") != std::string::npos);
}

TEST_CASE("a disk that fills up during a commit leaves the checkpoint uncommitted") {
  auto scratch = scratch_directory{};
  auto disk = testing::memory_file_system{scratch.path() / "disk", "size=64k"};
  if (!disk.mounted()) {
    std::puts("SKIP: no right to mount a small file system");
    return;
  }
  auto state = sample_state{{{"w", dtype::u8, {40'000}}}};
  auto content = sample_manifest();
  content.values_json = std::string(60'000, ' ');
  auto saved = save(disk.path(), state, content, 1);
  REQUIRE_FALSE(saved);
  CHECK(saved.error().code == errc::io_error);
  CHECK(list_checkpoints(disk.path())->empty());
  CHECK(remove_abandoned(disk.path())->size() == 1);
  content.values_json.clear();
  CHECK(save(disk.path(), state, content, 1));
}

TEST_CASE("a limit on file sizes is an error, not a signal that kills the process") {
  auto before = rlimit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto scratch = scratch_directory{};
  auto state = sample_state{{{"big", dtype::u8, {200'000}}}};
  auto limited = rlimit{65'536, before.rlim_max};
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limited) == 0);
  auto report = write_part(scratch.path(), 0, plan_chunks(state.specs(), 1), state.views());
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  REQUIRE_FALSE(report);
  CHECK(report.error().code == errc::io_error);
}

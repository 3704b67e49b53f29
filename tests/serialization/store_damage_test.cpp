// Damage on the device: every byte of a small checkpoint, random bytes of a larger one.
#include "checkpoint_scenario.hpp"
#include "memory_disk.hpp"

#include <troupe/serialization/files/durable_file.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

using namespace troupe;
using namespace troupe::serialization;
namespace fs = std::filesystem;

namespace {

const fs::path& directory() {
  return checkpoint_scenario::directory();
}

/// Two checkpoints of a small state; the newer one gets damaged.
class two_checkpoints {
 public:
  two_checkpoints() {
    value_or_throw(create_directories_durably(directory(), disk));
    for (auto step : {step_id{10}, step_id{20}})
      value_or_throw(checkpoint_scenario{disk, {2, 4096, 2}}.take(step));
    auto stored = value_or_throw(checkpoint::open(newest(), disk));
    for (const auto& tensor : stored.content().tensors)
      good_.push_back(bytes_of_tensor(stored, tensor.spec));
  }

  [[nodiscard]] static fs::path newest() { return directory() / checkpoint_name({20}); }

  [[nodiscard]] std::vector<fs::path> files() {
    auto result = std::vector<fs::path>{};
    for (const auto& entry : value_or_throw(disk.list(newest())))
      result.push_back(newest() / entry.name);
    return result;
  }

  /// Checks that the newer checkpoint is rejected and the older one loaded, and that reads return errors or correct
  /// data.
  [[nodiscard]] std::string check_damaged() {
    auto latest = open_latest(directory(), disk);
    if (!latest)
      return "nothing is found: " + latest.error().message;
    if (latest->found.content().step != step_id{10})
      return "the damage is not found";
    if (latest->passed_over.size() != 1 || latest->passed_over[0].text().find("step-00000020") == std::string::npos)
      return "the damage is not told";
    auto stored = checkpoint::open(newest(), disk);
    if (!stored)
      return stored.error().code == errc::damaged ? "" : "another error: " + stored.error().message;
    for (std::size_t i = 0; i < good_.size(); ++i) {
      auto copy = std::vector<std::byte>(good_[i].size());
      if (stored->read_tensor(i, copy) && copy != good_[i])
        return "wrong numbers were read";
    }
    return "";
  }

  memory_disk disk;

 private:
  static std::vector<std::byte> bytes_of_tensor(const checkpoint& stored, const tensor_spec& spec) {
    auto result = std::vector<std::byte>(spec.size_bytes());
    value_or_throw(stored.read_tensor(spec.name, result));
    return result;
  }

  std::vector<std::vector<std::byte>> good_;
};

} // namespace

TEST_CASE("every flipped byte of every file of a checkpoint is found, padding included") {
  auto stored = two_checkpoints{};
  auto flips = std::size_t{0};
  for (const auto& path : stored.files()) {
    const auto good = stored.disk.bytes_at(path);
    auto bad = good;
    for (std::size_t i = 0; i < good.size(); ++i)
      for (auto mask : {std::byte{0x01}, std::byte{0x80}, std::byte{0xff}}) {
        bad[i] = good[i] ^ mask;
        stored.disk.put(path, bad);
        auto flaw = stored.check_damaged();
        CHECK_MESSAGE(flaw.empty(), path.string(), " at ", i, ": ", flaw);
        bad[i] = good[i];
        ++flips;
      }
    stored.disk.put(path, good);
  }
  CHECK(flips > 3 * 12'000);
  CHECK(open_latest(directory(), stored.disk)->passed_over.empty());
}

TEST_CASE("damage to a shared file is found in each checkpoint that shares it, and in no other") {
  auto disk = memory_disk{};
  value_or_throw(create_directories_durably(directory(), disk));
  auto scenario = checkpoint_scenario{disk, checkpoint_scenario::with_frozen_tensor()};
  auto steps = std::vector<step_id>{{10}, {20}, {30}, {40}, {50}};
  for (auto step : steps)
    value_or_throw(scenario.take(step));
  auto own = [](step_id step) { return directory() / checkpoint_name(step) / chunk_file_name(2, 1); };
  // Gets its own file the second time, and is written again after three checkpoints.
  CHECK(disk.is_same(own({20}), own({30})));
  CHECK(disk.is_same(own({20}), own({40})));
  CHECK_FALSE(disk.is_same(own({20}), own({50})));
  const auto good = disk.bytes_at(own({30}));
  for (std::size_t i = 0; i < good.size(); i += 7) {
    auto bad = good;
    bad[i] ^= std::byte{1};
    disk.put(own({30}), bad);
    for (auto step : steps) {
      auto stored = checkpoint::open(directory() / checkpoint_name(step), disk);
      REQUIRE(stored);
      auto whole = stored->verify();
      CHECK(whole.has_value() == (step == step_id{10} || step == step_id{50}));
      if (!whole)
        CHECK(whole.error().message.find(own(step).string()) != std::string::npos);
    }
  }
  disk.put(own({30}), good);
  CHECK_FALSE(scenario.find_flaw());
}

TEST_CASE("every truncation of every file of a checkpoint is found, and extra bytes at its end") {
  auto stored = two_checkpoints{};
  for (const auto& path : stored.files()) {
    const auto good = stored.disk.bytes_at(path);
    for (std::size_t size = 0; size <= good.size() + 2; ++size) {
      if (size == good.size())
        continue;
      auto bad = good;
      bad.resize(size);
      stored.disk.put(path, std::move(bad));
      auto flaw = stored.check_damaged();
      CHECK_MESSAGE(flaw.empty(), path.string(), " of ", size, " bytes: ", flaw);
    }
    stored.disk.put(path, good);
  }
}

TEST_CASE("missing, swapped and foreign files are found") {
  auto stored = two_checkpoints{};
  auto files = stored.files();
  REQUIRE(files.size() == 3);
  for (const auto& path : files) {
    const auto good = stored.disk.bytes_at(path);
    for (const auto& other : files)
      if (other != path) {
        stored.disk.put(path, stored.disk.bytes_at(other));
        CHECK(stored.check_damaged() == "");
      }
    if (path.filename() != manifest_file_name) {
      stored.disk.put(path, stored.disk.bytes_at(directory() / checkpoint_name({10}) / path.filename()));
      CHECK(stored.check_damaged() == "");
    }
    stored.disk.put(path, good);
    REQUIRE(stored.disk.remove(path));
    CHECK(stored.check_damaged() == "");
    REQUIRE(stored.disk.create(path));
    CHECK(stored.check_damaged() == "");
    stored.disk.put(path, good);
  }
}

TEST_CASE("a damaged checkpoint is replaced by a new one of its step, a valid one is not") {
  for (auto name : {std::string{"part-0001.bin"}, std::string{manifest_file_name}}) {
    auto stored = two_checkpoints{};
    auto refused = checkpoint_scenario{stored.disk, {2, 4096, 2}}.take({20}, 2);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == errc::already_exists);
    auto path = two_checkpoints::newest() / name;
    auto bytes = stored.disk.bytes_at(path);
    bytes[40] ^= std::byte{4};
    stored.disk.put(path, bytes);
    CHECK(checkpoint_scenario{stored.disk, {2, 4096, 2}}.take({20}, 3));
    auto latest = open_latest(directory(), stored.disk);
    REQUIRE(latest);
    CHECK(latest->found.content().step == step_id{20});
    CHECK(latest->passed_over.empty());
  }
}

TEST_CASE("damage anywhere in a larger checkpoint is found") {
  auto scratch = scratch_directory{};
  auto state = sample_state{{{"embedding", dtype::f32, {517, 257}}, {"odd", dtype::u8, {70'001}}}};
  auto path = save(scratch.path(), state, sample_manifest({7}), 3, 65'536);
  REQUIRE(path);
  auto random = std::mt19937_64{7};
  for (int round = 0; round < 100; ++round) {
    auto file = *path / part_file_name(static_cast<std::uint32_t>(round % 3));
    const auto good = read_file(file);
    auto bad = good;
    auto first = random() % good.size();
    auto length = std::min<std::size_t>(std::size_t{1} << random() % 14, good.size() - first);
    for (auto i = first; i < first + length; ++i)
      bad[i] = static_cast<char>(random());
    if (bad == good)
      continue;
    CAPTURE(round);
    overwrite_file(file, bad);
    auto latest = open_latest(scratch.path());
    REQUIRE_FALSE(latest);
    CHECK(latest.error().code == errc::damaged);
    CHECK(latest.error().message.find(file.string()) != std::string::npos);
    overwrite_file(file, good);
  }
  CHECK(open_latest(scratch.path()));
}

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/copy.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/digest.hpp>

#include "scratch.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace troupe;
using namespace troupe::serialization;
namespace fs = std::filesystem;

namespace {

/// A checkpoint of step 7 in `runs`, and an empty directory of checkpoints.
struct two_places {
  two_places() {
    fs::create_directories(from_directory());
    fs::create_directories(to());
    auto state = sample_state{assorted_specs(), 7};
    REQUIRE(save(from_directory(), state, sample_manifest({7}), 2));
  }

  [[nodiscard]] fs::path from_directory() const { return scratch.path() / "runs"; }
  [[nodiscard]] fs::path from() const { return from_directory() / checkpoint_name({7}); }
  [[nodiscard]] fs::path to() const { return scratch.path() / "mirror"; }
  [[nodiscard]] bool is_empty() const { return fs::is_empty(to()); }

  scratch_directory scratch;
};

std::string state_of(const fs::path& directory) {
  auto opened = checkpoint::open(directory);
  REQUIRE(opened);
  auto digest = state_sha256(*opened);
  REQUIRE(digest);
  return *digest;
}

} // namespace

TEST_CASE("a copy is a checkpoint with the same state and the same files") {
  two_places here;
  const auto copied = copy_checkpoint(here.from(), here.to());
  REQUIRE(copied);
  CHECK(*copied == here.to() / checkpoint_name({7}));
  CHECK(state_of(*copied) == state_of(here.from()));
  for (const auto& entry : fs::directory_iterator{here.from()})
    CHECK(read_file(entry.path()) == read_file(*copied / entry.path().filename()));
  // Nothing else is left there.
  CHECK(std::distance(fs::directory_iterator{here.to()}, {}) == 1);
}

TEST_CASE("a good copy is not replaced, a damaged one is") {
  two_places here;
  REQUIRE(copy_checkpoint(here.from(), here.to()));
  CHECK(copy_checkpoint(here.from(), here.to()).error().code == errc::already_exists);
  const auto part = here.to() / checkpoint_name({7}) / "part-0000.bin";
  flip_bit(part, 3);
  REQUIRE(copy_checkpoint(here.from(), here.to()));
  CHECK(state_of(here.to() / checkpoint_name({7})) == state_of(here.from()));
}

TEST_CASE("a damaged checkpoint is not copied, and leaves nothing") {
  two_places here;
  flip_bit(here.from() / "part-0000.bin", 3);
  const auto copied = copy_checkpoint(here.from(), here.to());
  REQUIRE_FALSE(copied);
  CHECK(copied.error().code == errc::damaged);
  CHECK(here.is_empty());
}

TEST_CASE("what is no checkpoint is refused, and leaves nothing") {
  two_places here;
  CHECK(copy_checkpoint(here.from_directory() / checkpoint_name({8}), here.to()).error().code == errc::not_found);
  CHECK(copy_checkpoint(here.from_directory(), here.to()).error().code == errc::invalid_argument);
  fs::remove(here.from() / manifest_file_name);
  CHECK_FALSE(copy_checkpoint(here.from(), here.to()));
  CHECK(here.is_empty());
}

TEST_CASE("a copy that is given up leaves nothing") {
  two_places here;
  auto stop = std::stop_source{};
  stop.request_stop();
  CHECK(copy_checkpoint(here.from(), here.to(), stop.get_token()).error().code == errc::aborted);
  CHECK(here.is_empty());
}

TEST_CASE("a directory that another program has filled becomes a checkpoint only if it verifies") {
  two_places here;
  const auto copy = copy_directory(here.to(), {7});
  fs::copy(here.from(), copy);
  flip_bit(copy / "part-0001.bin", 1);
  CHECK(adopt_copy(here.to(), {7}).error().code == errc::damaged);
  CHECK(here.is_empty());
  // Half of it.
  fs::copy(here.from(), copy);
  fs::remove(copy / "part-0001.bin");
  CHECK(adopt_copy(here.to(), {7}).error().code == errc::damaged);
  CHECK(here.is_empty());
  // Of another step.
  fs::copy(here.from(), copy_directory(here.to(), {8}));
  CHECK(adopt_copy(here.to(), {8}).error().code == errc::damaged);
  CHECK(here.is_empty());
  fs::copy(here.from(), copy);
  CHECK(adopt_copy(here.to(), {7}));
  CHECK(state_of(here.to() / checkpoint_name({7})) == state_of(here.from()));
}

TEST_CASE("an unfinished copy is no checkpoint, and is cleaned up like an unfinished attempt") {
  two_places here;
  fs::copy(here.from(), copy_directory(here.to(), {7}));
  CHECK(list_checkpoints(here.to())->empty());
  CHECK(open_latest(here.to()).error().code == errc::not_found);
  CHECK(remove_abandoned(here.to())->size() == 1);
  CHECK(here.is_empty());
}

TEST_CASE("retention leaves what somebody reads, and removes it later") {
  const auto scratch = scratch_directory{};
  for (const std::uint64_t step : {1, 2, 3, 4}) {
    auto state = sample_state{assorted_specs(), step};
    REQUIRE(save(scratch.path(), state, sample_manifest({step}), 2));
  }
  const auto in_use = std::vector<step_id>{{2}};
  CHECK(apply_retention(scratch.path(), retention_policy{.num_to_keep = 1}, in_use)->size() == 2);
  CHECK(list_checkpoints(scratch.path())->front().step == step_id{2});
  CHECK(apply_retention(scratch.path(), 1)->size() == 1);
  CHECK(list_checkpoints(scratch.path())->size() == 1);
}

#include <troupe/runtime/mirror.hpp>

#include "../serialization/scratch.hpp"

#include <s3_server.hpp>

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <doctest/doctest.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::testing;
using namespace troupe::serialization;
namespace fs = std::filesystem;

namespace {

/// A run's directory, and its mirror at a place.
struct mirrored_run_fixture {
  mirrored_run_fixture(const fs::path& scratch, const std::string& place) : root(scratch / "run") {
    fs::create_directories(root / "checkpoints");
    auto opened = runtime::open_mirror(place, "rclone");
    REQUIRE_MESSAGE(opened, opened.error().message);
    mirror = std::move(*opened);
  }

  fs::path save_step(std::uint64_t step, std::uint64_t seed = 1) const {
    auto state = sample_state{assorted_specs(), step + seed};
    REQUIRE(save(root / "checkpoints", state, sample_manifest({step}), 2));
    return root / "checkpoints" / checkpoint_name({step});
  }
  [[nodiscard]] std::vector<step_id> complete() const {
    auto found = mirror->list({});
    REQUIRE_MESSAGE(found, found.error().message);
    return found->complete;
  }
  void upload(const fs::path& checkpoint) const {
    auto done = mirror->upload(checkpoint, {});
    REQUIRE_MESSAGE(done, done.error().message);
  }

  fs::path root;
  std::unique_ptr<actors::mirror_storage> mirror;
};

std::string state_of(const fs::path& directory) {
  auto opened = checkpoint::open(directory);
  REQUIRE_MESSAGE(opened, opened.error().message);
  return *state_sha256(*opened);
}

using steps = std::vector<step_id>;

/// Every kind of place must do all of this.
void check_place(const std::function<std::string(const std::string& name)>& place_of) {
  scratch_directory scratch;
  auto here = mirrored_run_fixture{scratch.path(), place_of("digits")};

  // Nothing is there at first, which is no error.
  CHECK(here.complete().empty());
  CHECK(here.mirror->fetch_file("run.json", scratch.path() / "x", {}).error().code == errc::not_found);
  CHECK(here.mirror->remove({10}, {}));
  CHECK(here.mirror->move_aside({})->empty());

  // Checkpoints come back with the same bits, also twice.
  const auto first = here.save_step(10);
  here.upload(first);
  here.upload(first);
  here.upload(here.save_step(20));
  CHECK(here.complete() == steps{{10}, {20}});
  const auto fetched = scratch.path() / "fetched";
  fs::create_directories(fetched);
  REQUIRE(here.mirror->fetch({10}, fetched, {}));
  CHECK(state_of(fetched / checkpoint_name({10})) == state_of(first));
  CHECK(here.mirror->fetch({10}, fetched, {}).error().code == errc::already_exists);
  CHECK_FALSE(here.mirror->fetch({30}, fetched, {}));
  CHECK(std::distance(fs::directory_iterator{fetched}, {}) == 1);

  // A file is replaced by its later self.
  for (const std::string text : {"{}", "{\"steps\": 20}"}) {
    overwrite_file(here.root / "run.json", text);
    REQUIRE(here.mirror->upload_files(here.root, {"run.json", "absent"}, {}));
    REQUIRE(here.mirror->fetch_file("run.json", scratch.path() / "copy", {}));
    CHECK(read_file(scratch.path() / "copy") == text);
  }

  // One that is damaged is not copied, nor one that is not there.
  const auto damaged = here.save_step(30);
  flip_bit(damaged / "part-0000.bin", 3);
  CHECK(here.mirror->upload(damaged, {}).error().code == errc::damaged);
  CHECK_FALSE(here.mirror->upload(here.root / "checkpoints" / checkpoint_name({40}), {}));
  CHECK(here.complete() == steps{{10}, {20}});

  auto stop = std::stop_source{};
  stop.request_stop();
  CHECK(here.mirror->upload(here.save_step(50), stop.get_token()).error().code == errc::aborted);
  CHECK(here.complete() == steps{{10}, {20}});

  REQUIRE(here.mirror->remove({10}, {}));
  CHECK(here.complete() == steps{{20}});

  // Another run of the name finds nothing, and the first one is kept.
  CHECK(*here.mirror->move_aside({}) == here.mirror->place() + ".1");
  CHECK(here.complete().empty());
  here.upload(first);
  CHECK(*here.mirror->move_aside({}) == here.mirror->place() + ".2");
  auto aside = mirrored_run_fixture{scratch.path() / "aside", place_of("digits.1")};
  CHECK(aside.complete() == steps{{20}});
}

/// False, and says so, where rclone is missing.
bool has_rclone() {
  if (is_in_path("rclone"))
    return true;
  std::puts("SKIP: rclone is not installed");
  CHECK(runtime::open_mirror("rclone:s3:bucket", "rclone").error().code == errc::not_found);
  return false;
}

} // namespace

TEST_CASE("a mirror in a directory keeps checkpoints and files") {
  scratch_directory scratch;
  check_place([&](const std::string& name) { return (scratch.path() / "mirror" / name).string(); });
}

TEST_CASE("a mirror behind rclone keeps checkpoints and files") {
  if (!has_rclone())
    return;
  scratch_directory scratch;
  check_place([&](const std::string& name) { return "rclone::local:" + (scratch.path() / "mirror" / name).string(); });
}

TEST_CASE("a mirror in S3 keeps checkpoints and files") {
  scratch_directory scratch;
  std::string why;
  const auto server = s3_server::start(scratch.path(), why);
  if (!server) {
    std::printf("SKIP: %s\n", why.c_str());
    CHECK_FALSE(why.empty());
    return;
  }
  server->set_environment();
  check_place([](const std::string& name) { return "rclone:s3:bucket/runs/" + name; });
}

TEST_CASE("rclone is found out about before anything else, and what it says is passed on") {
  const auto missing = runtime::open_mirror("rclone:s3:bucket/run", "no-such-rclone");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == errc::not_found);
  CHECK(missing.error().message.find("apt-get install rclone") != std::string::npos);
  CHECK(runtime::open_mirror("rclone:s3", "rclone").error().code == errc::invalid_argument);
  if (!has_rclone())
    return;
  ::setenv("RCLONE_CONFIG", "/dev/null", 1);
  auto unknown = runtime::open_mirror("rclone:nowhere:bucket/run", "rclone");
  REQUIRE(unknown);
  const auto listed = (*unknown)->list({});
  REQUIRE_FALSE(listed);
  CHECK(listed.error().code == errc::io_error);
  CHECK(listed.error().message.find("didn't find section in config file") != std::string::npos);
}

TEST_CASE("what an upload has left is no checkpoint, wherever it stopped") {
  if (!has_rclone())
    return;
  scratch_directory scratch;
  const auto place = scratch.path() / "mirror" / "digits";
  auto here = mirrored_run_fixture{scratch.path(), "rclone::local:" + place.string()};
  const auto from = here.save_step(10);
  const auto to = place / "checkpoints" / checkpoint_name({10});
  // The manifest comes last, so every other file may be there, whole or in part.
  fs::create_directories(to);
  fs::copy(from / "part-0000.bin", to / "part-0000.bin");
  overwrite_file(to / "part-0001.bin", "half of ");
  const auto found = here.mirror->list({});
  REQUIRE(found);
  CHECK(found->complete.empty());
  CHECK(found->incomplete == steps{{10}});
  here.upload(from);
  CHECK(state_of(to) == state_of(from));
  // A manifest that was cut off is noticed by whoever reads.
  overwrite_file(to / manifest_file_name, read_file(to / manifest_file_name).substr(0, 40));
  const auto fetched = scratch.path() / "fetched";
  fs::create_directories(fetched);
  CHECK(here.mirror->fetch({10}, fetched, {}).error().code == errc::damaged);
  CHECK(fs::is_empty(fetched));
  here.upload(from);
  CHECK(here.mirror->fetch({10}, fetched, {}));
}

TEST_CASE("another checkpoint of the same step replaces the one at the mirror") {
  scratch_directory scratch;
  const auto place = scratch.path() / "mirror" / "digits";
  auto name = place.string();
  SUBCASE("in a directory") {}
  SUBCASE("behind rclone") {
    if (!has_rclone())
      return;
    name = "rclone::local:" + name;
  }
  auto here = mirrored_run_fixture{scratch.path(), name};
  here.upload(here.save_step(10));
  fs::remove_all(here.root / "checkpoints" / checkpoint_name({10}));
  const auto other = here.save_step(10, 2);
  here.upload(other);
  CHECK(state_of(place / "checkpoints" / checkpoint_name({10})) == state_of(other));
}

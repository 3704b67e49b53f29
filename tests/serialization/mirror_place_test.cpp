#include <troupe/config.hpp>
#include <troupe/mirror_place.hpp>

#include <doctest/doctest.h>

using namespace troupe;

TEST_CASE("a mirror is a directory, or a remote and a path of rclone's") {
  for (const auto* place : {"/mnt/mirror", "mirror", "with:colon", "rclone:s3:bucket", "rclone:s3:bucket/a b",
                            "rclone:s3:", "rclone::local:/tmp/x", "rclone-directory", "node"}) {
    CAPTURE(place);
    CHECK(validate_mirror_place(place));
  }
  for (const auto* place :
       {"", "rclone:", "rclone:s3", "rclone:/tmp", "rclone:--config:x", "rclone::", "a\nb", "node:h:4000/runs"}) {
    CAPTURE(place);
    const auto valid = validate_mirror_place(place);
    REQUIRE_FALSE(valid);
    CHECK(valid.error().code == errc::invalid_argument);
  }
  CHECK(rclone_path_of("rclone:s3:bucket/runs") == "s3:bucket/runs");
  CHECK_FALSE(rclone_path_of("/rclone:s3:bucket"));
  CHECK(is_remote_place("rclone:s3:bucket"));
  CHECK_FALSE(is_remote_place("/rclone:s3:bucket"));
  // An old run may still name one.
  CHECK(validate_mirror_place("node:h:4000").error().message.find("rclone::sftp,host=HOST:runs") != std::string::npos);
}

TEST_CASE("a run has a place of its own at a mirror") {
  CHECK(join_mirror_place("/mnt/mirror", "digits") == "/mnt/mirror/digits");
  CHECK(join_mirror_place("/mnt/mirror//", "digits") == "/mnt/mirror/digits");
  CHECK(join_mirror_place("/", "digits") == "/digits");
  CHECK(join_mirror_place("rclone:s3:", "digits") == "rclone:s3:digits");
  CHECK(join_mirror_place("rclone:s3:bucket/", "digits") == "rclone:s3:bucket/digits");
}

TEST_CASE("a place means a run's newest checkpoint, or the one that it names") {
  const auto newest = mirrored_run{"rclone:s3:bucket/digits", {}};
  CHECK(parse_mirrored_run("rclone:s3:bucket/digits") == newest);
  CHECK(parse_mirrored_run("rclone:s3:bucket/digits/") == newest);
  CHECK(parse_mirrored_run("rclone:s3:bucket/digits/checkpoints") == newest);
  const auto one = mirrored_run{"rclone:s3:bucket/digits", step_id{500}};
  CHECK(parse_mirrored_run("rclone:s3:bucket/digits/checkpoints/step-00000500") == one);
  CHECK(parse_mirrored_run("rclone:s3:bucket/digits/step-00000500/") == one);
  CHECK(parse_mirrored_run("rclone:s3:digits") == mirrored_run{"rclone:s3:digits", {}});
}

TEST_CASE("absurd mirrors are refused before anything starts") {
  auto config = trainer_config{};
  config.run.name = "digits";
  CHECK(validate(config));
  auto& mirror = config.checkpoint.mirror;
  mirror.to = "rclone:s3";
  CHECK(validate(config).error().message.find("checkpoint.mirror.to") != std::string::npos);
  mirror.to = "./runs/";
  CHECK(validate(config).error().message.find("run.storage_path") != std::string::npos);
  mirror.to = "mirror";
  CHECK(validate(config));
  mirror.num_to_keep = 0;
  CHECK_FALSE(validate(config));
  mirror.num_to_keep = 1;
  mirror.final_wait = std::chrono::milliseconds{-1};
  CHECK_FALSE(validate(config));
  mirror.final_wait = std::chrono::milliseconds{0};
  mirror.rclone.clear();
  CHECK_FALSE(validate(config));
}

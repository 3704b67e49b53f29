#include "mnist_runs.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using namespace troupe::testing;

namespace {

/// The number of images in the confusion matrix.
double judged_images(const mnist_runs::outcome& done) {
  double result = 0;
  for (const auto& [name, value] : done.result["metrics"].items())
    if (name.starts_with("confusion/"))
      result += value.get<double>();
  return result;
}

const std::vector<std::string> small{"--held-out", "64", "--batch", "64", "--steps", "30"};

std::vector<std::string> with(std::vector<std::string> options, std::vector<std::string> more) {
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

} // namespace

TEST_CASE("mnist ends in the same bits on 1, 2 and 4 workers, and with a worker killed in the middle") {
  mnist_runs here;
  // Long enough to be killed in the middle.
  const std::vector<std::string> longer{"--held-out", "64", "--batch", "32", "--steps", "80"};
  auto one = here.run("one", with(longer, {"--workers", "1", "--check-every-step"}));
  INFO(one.err);
  REQUIRE(one.status == exit_status{0, {}});
  for (const auto* workers : {"2", "4"}) {
    auto other = here.run(std::string{"on-"} + workers, with(longer, {"--workers", workers}));
    INFO(other.err);
    CHECK(other.result["state_sha256"] == one.result["state_sha256"]);
    CHECK(other.result["metrics"] == one.result["metrics"]);
  }
  auto process = here.start("killed", with(longer, {"--workers", "3"}));
  here.kill_when_training("killed", process);
  auto killed = here.end("killed", process);
  INFO(killed.err);
  CHECK(killed.status == exit_status{0, {}});
  CHECK(killed.result["failures"].size() == 1);
  CHECK(killed.result["state_sha256"] == one.result["state_sha256"]);
}

TEST_CASE("mnist prints the confusion matrix of held-out images, and fails below the required accuracy") {
  mnist_runs here;
  auto done = here.run("done", with(small, {"--require-accuracy", "0.9"}));
  INFO(done.out << done.err);
  CHECK(done.status == exit_status{0, {}});
  CHECK(judged_images(done) == 64);
  CHECK(done.out.find("predicted as") != std::string::npos);
  CHECK(done.out.find("held-out accuracy ") != std::string::npos);

  auto missed = here.run("missed", {"--held-out", "64", "--batch", "64", "--steps", "1", "--require-accuracy", "1"});
  CHECK(missed.status == exit_status{1, {}});
  CHECK(missed.err.find("is less than the required 1.0000") != std::string::npos);
}

TEST_CASE("a completed run of mnist prints its result again") {
  mnist_runs here;
  auto wanted = with(small, {"--quiet", "--require-accuracy", "0.9"});
  auto first = here.run("done", wanted);
  INFO(first.out << first.err);
  REQUIRE(first.status == exit_status{0, {}});
  auto again = here.run("done", wanted);
  INFO(again.out << again.err);
  CHECK(again.status == exit_status{0, {}});
  CHECK(again.out == first.out);
  CHECK(again.result["metrics"] == first.result["metrics"]);
}

TEST_CASE("mnist that is stopped before its first evaluation says so, and judges nothing") {
  mnist_runs here;
  auto process = here.start("stopped", {"--held-out", "64", "--batch", "64", "--steps", "1000000", "--evaluate-every",
                                        "1000000", "--require-accuracy", "0.9"});
  REQUIRE(becomes_true([&] {
    return !process.running() || !read_file(here.scratch.path() / "runs" / "stopped" / "metrics.jsonl").empty();
  }));
  process.signal(SIGINT);
  auto stopped = here.end("stopped", process);
  INFO(stopped.out << stopped.err);
  CHECK(stopped.status == exit_status{128 + SIGINT, {}});
  CHECK(stopped.out.find("held-out accuracy not evaluated yet, training loss ") != std::string::npos);
}

TEST_CASE("mnist trains on one set of files, and evaluates on another") {
  mnist_runs here;
  here.write_set("test-images", "test-labels", 50);
  const std::vector<std::string> both{"--test-images", here.file("test-images"), "--test-labels",
                                      here.file("test-labels")};
  auto done = here.run("both", with(both, {"--batch", "64", "--steps", "20", "--require-accuracy", "0.9"}));
  INFO(done.out << done.err);
  CHECK(done.status == exit_status{0, {}});
  CHECK(judged_images(done) == 50);
  CHECK(here.run("held-out", with(both, {"--held-out", "5"})).status == exit_status{2, {}});

  auto apart = here.run("apart", {"--test-images", here.file("images"), "--test-labels", here.file("test-labels")});
  CHECK(apart.status == exit_status{1, {}});
  CHECK_MESSAGE(apart.err.find(here.file("images") + " has 320 images, but " + here.file("test-labels") +
                               " has 50 labels") != std::string::npos,
                apart.err);
}

TEST_CASE("mnist without its workers' program names the missing one") {
  mnist_runs here;
  auto alone = here.scratch.path() / "alone";
  std::filesystem::create_directories(alone);
  std::filesystem::copy_file(built("bin/mnist"), alone / "mnist");
  auto process = here.start("alone", small, (alone / "mnist").string());
  auto refused = here.end("alone", process);
  CHECK(refused.status == exit_status{1, {}});
  CHECK_MESSAGE(refused.err.find("cannot open the program " + (alone / "mnist-worker").string()) != std::string::npos,
                refused.err);
}

TEST_CASE("mnist refuses files that are not images of 28 by 28") {
  mnist_runs here;
  auto labels = read_file(here.scratch.path() / "labels");
  write_file(here.scratch.path() / "images", labels);
  auto refused = here.run("refused", small);
  CHECK(refused.status == exit_status{1, {}});
  CHECK_MESSAGE(refused.err.find("expected u8[28, 28]") != std::string::npos, refused.err);
}

TEST_CASE("mnist reaches 96 percent on 2,000 held-out digits") {
  auto directory = std::filesystem::path{sources("")} / "../shared/data";
  auto images = directory / "mnist-t10k-images-idx3-ubyte.gz";
  auto labels = directory / "mnist-t10k-labels-idx1-ubyte.gz";
  if (!std::filesystem::exists(images)) {
    std::printf("SKIP: %s is not there\n", images.c_str());
    return;
  }
  mnist_runs here;
  auto done = here.run("digits", {"--images", images.string(), "--labels", labels.string(), "--steps", "100",
                                  "--require-accuracy", "0.96"});
  INFO(done.out << done.err);
  CHECK(done.status == exit_status{0, {}});
}

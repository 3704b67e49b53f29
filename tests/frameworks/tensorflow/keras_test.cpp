#include "mnist_runs.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

using namespace troupe::testing;

namespace {

namespace fs = std::filesystem;

struct keras_runs : mnist_runs {
  keras_runs() {
    (void)output_of("export", {"/usr/bin/env", "python3", sources("apps/keras/keras_model.py"), file("model")});
  }

  [[nodiscard]] std::string output_of(const std::string& name, std::vector<std::string> command) {
    const auto* packages = std::getenv("TROUPE_PYTHON_PACKAGES");
    auto process = child_process{{std::move(command), {{"PYTHONPATH", packages == nullptr ? "" : packages}}},
                                 scratch.path() / ("output-" + name)};
    auto status = process.wait();
    INFO(process.err());
    REQUIRE(status == exit_status{0, {}});
    return process.out();
  }

  [[nodiscard]] child_process start_keras(const std::string& name, std::vector<std::string> more,
                                          std::map<std::string, std::string> environment = {}) {
    std::vector<std::string> argv{built("bin/keras"), "--storage",    file("runs"), "--name",       name,
                                  "--images",         file("images"), "--labels",   file("labels"), "--quiet",
                                  "--batch",          "64",           "--held-out", "100"};
    if (std::ranges::find(more, "--model") == more.end())
      argv.insert(argv.end(), {"--model", file("model")});
    argv.insert(argv.end(), more.begin(), more.end());
    environment.emplace("TROUPE_KEYS", file("keys"));
    return {{std::move(argv), std::move(environment)}, scratch.path() / ("output-" + name)};
  }

  [[nodiscard]] outcome train(const std::string& name, std::vector<std::string> more) {
    auto process = start_keras(name, std::move(more));
    auto done = end(name, process);
    INFO(done.err);
    REQUIRE(done.status == exit_status{0, {}});
    return done;
  }

  [[nodiscard]] outcome fail(const std::string& name, std::vector<std::string> more,
                             std::map<std::string, std::string> environment = {}) {
    auto process = start_keras(name, std::move(more), std::move(environment));
    auto done = end(name, process);
    CHECK(done.status == exit_status{1, {}});
    return done;
  }
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The numbers of a text, whatever separates them.
std::vector<double> numbers_of(std::string text) {
  std::ranges::replace(text, ',', ' ');
  auto in = std::istringstream{text};
  std::vector<double> result;
  for (double number = 0; in >> number;)
    result.push_back(number);
  return result;
}

} // namespace

TEST_CASE(
    "a Keras model trains to the same bits on 1, 2, 3 and 8 workers, resumed and with a killed worker, and Python "
    "computes the same outputs") {
  keras_runs here;
  const auto one = here.train("one", {"--workers", "1", "--steps", "40", "--warm-up-steps", "5"});
  const auto state = one.result["state_sha256"];
  CHECK(one.result["metrics"]["held_out_accuracy"].get<double>() > 0.8);
  for (const std::string workers : {"2", "3", "8"}) {
    CAPTURE(workers);
    CHECK(here.train("on-" + workers, {"--workers", workers, "--steps", "40", "--warm-up-steps", "5"})
              .result["state_sha256"] == state);
  }
  (void)here.train("halves", {"--workers", "2", "--steps", "17", "--warm-up-steps", "5"});
  CHECK(here.train("halves", {"--workers", "1", "--steps", "40", "--warm-up-steps", "5"}).result["state_sha256"] ==
        state);
  auto process = here.start_keras("killed", {"--workers", "3", "--steps", "40", "--warm-up-steps", "5"});
  here.kill_when_training("killed", process);
  const auto killed = here.end("killed", process);
  CHECK(killed.result["state_sha256"] == state);
  CHECK(killed.result["failures"].size() == 1);

  (void)here.output_of("predict",
                       {predict_program(), "--checkpoint", here.file("runs/one"), "--keras-model", here.file("model"),
                        "--file", here.file("images"), "--output", here.file("predicted.csv"), "--storage",
                        here.file("runs"), "--workers", "3", "--block", "96"});
  auto table = read_file(here.scratch.path() / "predicted.csv");
  REQUIRE(table.starts_with("output_0,output_1,"));
  const auto ours = numbers_of(table.substr(table.find('\n')));
  fs::create_directory(here.file("variables"));
  for (const std::string variable :
       {"sequential/conv2d/kernel", "sequential/batch_normalization/gamma", "sequential/batch_normalization/beta",
        "sequential/batch_normalization/moving_mean", "sequential/batch_normalization/moving_variance",
        "sequential/conv2d_1/kernel", "sequential/conv2d_1/bias", "sequential/dense/kernel", "sequential/dense/bias"}) {
    auto file = variable;
    std::ranges::replace(file, '/', ',');
    (void)here.output_of("export-" + file, {troupe_program(), "checkpoint", "export", here.file("runs/one"),
                                            here.file("variables/" + file + ".npy"), "--tensor", variable});
  }
  auto text = here.output_of("outputs", {"/usr/bin/env", "python3", sources("tests/frameworks/tensorflow/outputs.py"),
                                         sources("apps/keras"), here.file("variables"), here.file("images"), "320"});
  // The generator of dropout is no part of the state.
  if (const auto line = text.find("not in the checkpoint: seed_generator"); line == 0)
    text = text.substr(text.find('\n'));
  const auto theirs = numbers_of(text);
  REQUIRE(ours.size() == 3200);
  REQUIRE(theirs.size() == ours.size());
  for (std::size_t i = 0; i < ours.size(); ++i)
    REQUIRE(ours[i] == doctest::Approx(theirs[i]).epsilon(1e-4));
}

TEST_CASE("a model that is none, has changed or does not fit, and a missing library, are said before the first step") {
  keras_runs here;
  fs::create_directory(here.file("empty"));
  CHECK(contains(here.fail("none", {"--model", here.file("empty")}).err,
                 "is no model for Troupe: it has no assets.extra/troupe.json"));
  CHECK(contains(here.fail("library", {}, {{"TROUPE_TENSORFLOW", "/nowhere/libtensorflow_cc.so.2"}}).err,
                 "/nowhere/libtensorflow_cc.so.2 is not a file"));
  (void)here.train("changed", {"--steps", "2"});
  fs::copy(here.file("model"), here.file("other"), fs::copy_options::recursive);
  std::ofstream{fs::path{here.file("other")} / "assets.extra" / "troupe.json", std::ios::app} << " ";
  CHECK(contains(here.fail("changed", {"--steps", "4", "--model", here.file("other")}).err,
                 "is not the model that the run began with"));
  std::ofstream{fs::path{here.file("other")} / "saved_model.pb"} << "no graph";
  CHECK(contains(here.fail("damaged", {"--model", here.file("other")}).err, "TensorFlow: "));
}

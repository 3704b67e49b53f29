#include "mnist_runs.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

using namespace troupe::testing;

namespace {

/// A Python that has PyTorch and safetensors; Debian's is not always the first one.
std::optional<std::string> find_python() {
  for (const auto* each : {"python3", "/usr/bin/python3"})
    if (std::system((std::string{each} + " -c 'import torch, safetensors.torch' >/dev/null 2>&1").c_str()) == 0)
      return each;
  return std::nullopt;
}

struct python_models : mnist_runs {
  std::optional<std::string> python = find_python();

  /// Standard output of Python, or of a program of ours.
  [[nodiscard]] std::string output_of(const std::string& name, std::vector<std::string> command) {
    auto process = child_process{{std::move(command), {}}, scratch.path() / ("output-" + name)};
    auto status = process.wait();
    INFO(process.err());
    REQUIRE(status == exit_status{0, {}});
    return process.out();
  }

  [[nodiscard]] std::string run_script(std::vector<std::string> arguments) {
    const auto name = "python-" + arguments.front();
    arguments.insert(arguments.begin(), {*python, sources("apps/mnist/python_model.py")});
    return output_of(name, std::move(arguments));
  }
};

} // namespace

TEST_CASE("a model from Python trains to the same bits on one, two and three workers, and goes back with the same "
          "outputs") {
  python_models here;
  if (!here.python) {
    std::puts("SKIP: no python3 here has torch and safetensors (Debian: python3-torch; pip install safetensors)");
    return;
  }
  (void)here.run_script({"export", here.file("residual.pt")});
  auto train = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.begin(), {"--model", here.file("residual.pt"), "--quiet", "--batch", "64", "--held-out", "100",
                               "--learning-rate", "0.01"});
    auto done = here.run(name, std::move(more));
    INFO(done.err);
    REQUIRE(done.status == exit_status{0, {}});
    return done;
  };
  auto one = train("one", {"--workers", "1", "--steps", "40"});
  for (const std::string workers : {"2", "3"})
    CHECK(train("on-" + workers, {"--workers", workers, "--steps", "40"}).result["state_sha256"] ==
          one.result["state_sha256"]);
  (void)train("halves", {"--workers", "2", "--steps", "17"});
  CHECK(train("halves", {"--workers", "1", "--steps", "40"}).result["state_sha256"] == one.result["state_sha256"]);

  (void)here.output_of("export",
                       {troupe_program(), "checkpoint", "export", here.file("runs/one"), here.file("one.safetensors")});
  auto text =
      here.run_script({"evaluate", here.file("one.safetensors"), here.file("images"), here.file("labels"), "100"});
  double accuracy = 0;
  double loss = 0;
  REQUIRE(std::sscanf(text.c_str(), "accuracy %lf loss %lf", &accuracy, &loss) == 2);
  const auto& metrics = one.result["metrics"];
  CHECK(accuracy == doctest::Approx(metrics["held_out_accuracy"].get<double>()));
  CHECK(loss == doctest::Approx(metrics["held_out_loss"].get<double>()).epsilon(1e-5));
  // It has learned more than a guess.
  CHECK(accuracy > 0.3);
}

TEST_CASE("a file that is no TorchScript model of images is refused before the first step") {
  mnist_runs here;
  write_file(here.scratch.path() / "text.pt", "this is no model");
  auto wrong = here.run("wrong", {"--model", here.file("text.pt"), "--quiet", "--held-out", "100"});
  CHECK(wrong.status == exit_status{1, {}});
  CHECK_MESSAGE(wrong.err.find("text.pt cannot be used as a TorchScript model of images") != std::string::npos,
                wrong.err);
  auto missing = here.run("missing", {"--model", here.file("none.pt"), "--quiet", "--held-out", "100"});
  CHECK(missing.status == exit_status{1, {}});
  CHECK_MESSAGE(missing.err.find("none.pt does not exist") != std::string::npos, missing.err);
}

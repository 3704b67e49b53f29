#include "program_runs.hpp"

#include <built.hpp>
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

using namespace troupe::testing;

namespace {

/// Runs of the program gpt on its own text: sums with their results.
struct gpt_runs : program_runs {
  gpt_runs() {
    std::string text;
    for (int i = 0; i < 700; ++i) {
      auto a = i * 7 % 10;
      auto b = i * 3 % 9;
      text += std::to_string(a) + "+" + std::to_string(b) + "=" + std::to_string(a + b) + "\n";
    }
    write_file(scratch.path() / "text", text);
  }

  [[nodiscard]] child_process start(const std::string& name, const std::vector<std::string>& more) {
    auto file = [this](const char* which) { return (scratch.path() / which).string(); };
    std::vector<std::string> argv{built("bin/gpt")};
    argv.insert(argv.end(), more.begin(), more.end());
    return {{std::move(argv), {{"TROUPE_KEYS", file("keys")}}}, scratch.path() / ("output-" + name)};
  }

  /// The arguments of a small model.
  [[nodiscard]] std::vector<std::string> small(const std::string& name, std::vector<std::string> more) const {
    std::vector<std::string> result{"--text",           (scratch.path() / "text").string(),
                                    "--storage",        (scratch.path() / "runs").string(),
                                    "--name",           name,
                                    "--block-size",     "16",
                                    "--layers",         "2",
                                    "--heads",          "2",
                                    "--embedding",      "32",
                                    "--batch",          "8",
                                    "--dropout",        "0.1",
                                    "--learning-rate",  "4e-3",
                                    "--warmup-steps",   "10",
                                    "--decay-steps",    "120",
                                    "--evaluate-every", "40"};
    result.insert(result.end(), more.begin(), more.end());
    return result;
  }

  [[nodiscard]] outcome train(const std::string& name, std::vector<std::string> more) {
    auto process = start(name, small(name, std::move(more)));
    return end(name, process);
  }
};

} // namespace

TEST_CASE("gpt ends in the same bits on 1, 2 and 4 workers, resumed, and with a worker killed in the middle") {
  gpt_runs here;
  auto one = here.train("one", {"--steps", "120", "--workers", "1", "--quiet", "--check-every-step"});
  INFO(one.err);
  REQUIRE(one.status == exit_status{0, {}});
  // It learns: a uniform distribution has a loss of log 13 = 2.56.
  CHECK(one.result["metrics"]["validation_loss"].get<double>() < 1.5);
  for (const auto* workers : {"2", "4"}) {
    auto other = here.train(std::string{"on-"} + workers, {"--steps", "120", "--workers", workers, "--quiet"});
    INFO(other.err);
    CHECK(other.result["state_sha256"] == one.result["state_sha256"]);
    CHECK(other.result["metrics"] == one.result["metrics"]);
  }
  CHECK(here.train("halves", {"--steps", "50", "--workers", "2", "--quiet"}).status == exit_status{0, {}});
  auto resumed = here.train("halves", {"--steps", "120", "--workers", "1", "--quiet", "--resume", "required"});
  INFO(resumed.err);
  CHECK(resumed.result["state_sha256"] == one.result["state_sha256"]);

  auto process = here.start("killed", here.small("killed", {"--steps", "120", "--workers", "3", "--quiet"}));
  here.kill_when_training("killed", process);
  auto killed = here.end("killed", process);
  INFO(killed.err);
  CHECK(killed.status == exit_status{0, {}});
  CHECK(killed.result["failures"].size() == 1);
  CHECK(killed.result["state_sha256"] == one.result["state_sha256"]);
}

TEST_CASE("gpt prints its loss beside the published one, and writes the same text again from a checkpoint") {
  gpt_runs here;
  auto done = here.train("done", {"--steps", "40", "--sample", "60", "--prompt", "1+2="});
  INFO(done.out << done.err);
  REQUIRE(done.status == exit_status{0, {}});
  CHECK(done.out.find("nanoGPT's published figure: 1.88 for tinyshakespeare") != std::string::npos);
  const auto mark = std::string{"Generated text (temperature 0.8):\n"};
  auto from = done.out.find(mark);
  REQUIRE(from != std::string::npos);
  auto text = done.out.substr(from + mark.size(), 60);
  CHECK(text.find_first_not_of("0123456789+=\n") == std::string::npos);

  auto write = [&here](std::vector<std::string> more) {
    more.insert(more.begin(), {"--sample-from", (here.scratch.path() / "runs" / "done").string()});
    auto process = here.start("written", more);
    return here.end("written", process);
  };
  auto again = write({"--sample", "60", "--prompt", "1+2="});
  INFO(again.err);
  CHECK(again.status == exit_status{0, {}});
  CHECK(again.out == text + "\n");
  CHECK(write({"--sample", "60", "--prompt", "1+2=", "--seed", "2"}).out != again.out);
  auto likeliest = write({"--sample", "20", "--temperature", "0"});
  CHECK(likeliest.out == write({"--sample", "20", "--temperature", "0", "--seed", "9"}).out);

  auto refused = write({"--prompt", "one"});
  CHECK(refused.status == exit_status{1, {}});
  CHECK_MESSAGE(refused.err.find("code 111 is not among the 13 that the model knows") != std::string::npos,
                refused.err);
}

TEST_CASE("gpt trains on files of tokens, with the same bits on any number of workers") {
  gpt_runs here;
  const auto write_tokens = [&here](const char* name, int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i) {
      bytes += static_cast<char>(i * i % 23);
      bytes += '\x01';
    }
    write_file(here.scratch.path() / name, bytes);
    return (here.scratch.path() / name).string();
  };
  const auto training = write_tokens("train.bin", 3000);
  const auto validation = write_tokens("val.bin", 300);
  const auto train = [&](const std::string& name, std::vector<std::string> more, const char* vocabulary = "300") {
    auto arguments = here.small(name, std::move(more));
    arguments.erase(arguments.begin(), arguments.begin() + 2);
    arguments.insert(arguments.begin(), {"--tokens", training, "--validation-tokens", validation, "--vocabulary",
                                         vocabulary, "--steps", "60"});
    auto process = here.start(name, arguments);
    return here.end(name, process);
  };
  const auto one = train("one", {"--workers", "1"});
  INFO(one.out << one.err);
  REQUIRE(one.status == exit_status{0, {}});
  CHECK(one.out.find("gpt: 2992 tokens from ") != std::string::npos);
  CHECK(one.out.find(" nats per token") != std::string::npos);
  CHECK(one.out.find("Generated text") == std::string::npos);
  // It learns: a uniform distribution has a loss of log 300 = 5.7.
  CHECK(one.result["metrics"]["validation_loss"].get<double>() < 3);
  CHECK(train("three", {"--workers", "3", "--quiet"}).result["state_sha256"] == one.result["state_sha256"]);

  auto process = here.start("written", {"--sample-from", (here.scratch.path() / "runs" / "one").string()});
  const auto written = here.end("written", process);
  CHECK(written.status == exit_status{1, {}});
  CHECK_MESSAGE(written.err.find("was trained on a file of tokens") != std::string::npos, written.err);
  const auto small = train("small", {"--workers", "1"}, "270");
  CHECK(small.status == exit_status{1, {}});
  CHECK_MESSAGE(small.err.find("is not from 0 to 269") != std::string::npos, small.err);
}

TEST_CASE("gpt reports invalid arguments") {
  gpt_runs here;
  auto run = [&here](std::vector<std::string> arguments) {
    auto process = here.start("refused", arguments);
    return here.end("refused", process);
  };
  auto neither = run({});
  CHECK(neither.status == exit_status{2, {}});
  CHECK(neither.err.find("give one of --text and --tokens, to train, or --sample-from") != std::string::npos);
  auto text = (here.scratch.path() / "text").string();
  auto heads = run({"--text", text, "--embedding", "32", "--heads", "5"});
  CHECK(heads.status == exit_status{1, {}});
  CHECK(heads.err.find("--embedding 32 is not a multiple of --heads 5") != std::string::npos);
  auto block = run({"--text", text, "--block-size", "5000"});
  CHECK(block.status == exit_status{1, {}});
  CHECK_MESSAGE(block.err.find("does not contain a window of 5000") != std::string::npos, block.err);
}

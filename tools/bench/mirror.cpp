// Measures what a run's mirror costs a step. See README.md.

#include "timing.hpp"

#include <command_line.hpp>

#include <troupe/troupe.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;
using namespace troupe::bench;

/// Arithmetic of a fixed amount, not of a fixed time: if something takes the processor away, it takes longer.
double compute(std::uint64_t rounds) {
  auto x = 1.0;
  for (std::uint64_t i = 0; i < rounds; ++i)
    x = x * 0.999999 + 1e-7;
  return x;
}

/// How many rounds the machine does in a millisecond.
std::uint64_t rounds_per_millisecond() {
  constexpr std::uint64_t rounds = 20'000'000;
  const auto start = clock_type::now();
  if (std::isnan(compute(rounds)))
    throw troupe::exception{troupe::errc::internal, "nothing was computed"};
  return static_cast<std::uint64_t>(static_cast<double>(rounds) / (1000 * seconds_since(start)));
}

/// Steps over a state of fixed size, all of which changes between two checkpoints. In the last step it reports how long
/// a step took.
void train_state(troupe::train_context& ctx) {
  const auto elements = ctx.config().at("bytes").get<std::size_t>() / sizeof(float);
  const auto rounds = ctx.config().at("rounds_of_shard").get<std::uint64_t>();
  std::vector<float> state(elements, 1.5f);
  ctx.state().track("state", state);
  clock_type::time_point start;
  troupe::step_plan plan;
  plan.data = {64, "bench"};
  plan.batch_samples = 64;
  plan.gradient_elements = 16;
  ctx.for_each_step(plan, [&](troupe::step& step) {
    for (auto& shard : step.shards())
      shard.add("loss", compute(rounds));
    step.all_reduce();
    for (std::size_t i = step.number() % 64; i < elements; i += 64)
      state[i] += 1;
    // The first few run with cold memory.
    if (step.number() == 3)
      start = clock_type::now();
    if (step.last())
      step.report({{"seconds_per_step", seconds_since(start) / static_cast<double>(step.number() - 3)}});
  });
}

struct settings {
  fs::path storage = fs::temp_directory_path();
  fs::path mirror = fs::temp_directory_path();
  /// HOST:PORT of a node that keeps mirrors; empty: none.
  std::string node = {};
  unsigned runs = 7;
  std::uint64_t steps = 400;
  std::uint64_t every = 20;
  std::size_t mebibytes = 64;
  double step_ms = 20;
};

troupe::run_result fit(const troupe::app& app, const troupe::function& train, const settings& s, std::uint32_t workers,
                       std::uint64_t rounds, const std::string& mirror) {
  constexpr std::uint32_t shards = 4;
  const auto storage = s.storage / fmt::format("troupe-mirror-{}", ::getpid());
  troupe::trainer_config config;
  config.scaling = {.num_workers = workers, .shards = shards};
  config.run.storage_path = storage;
  config.run.steps = s.steps;
  config.checkpoint.every_steps = s.every;
  config.checkpoint.mirror.to = mirror;
  config.config = {{"bytes", s.mebibytes << 20}, {"rounds_of_shard", rounds * workers / shards}};
  auto trainer = troupe::trainer{app, train, config};
  auto result = trainer.fit();
  fs::remove_all(storage);
  if (result.status != troupe::run_status::completed)
    throw troupe::exception{result.reason};
  return result;
}

void measure(const troupe::app& app, const troupe::function& train, const settings& s) {
  const auto rounds = static_cast<std::uint64_t>(s.step_ms * static_cast<double>(rounds_per_millisecond()));
  const auto directory = s.mirror / fmt::format("troupe-mirror-copies-{}", ::getpid());
  const auto has_rclone = std::system("command -v rclone >/dev/null 2>&1") == 0;
  std::printf("Steps with a checkpoint of %zu MiB every %llu steps: without a mirror, with one, and without again "
              "(ms; medians of %u runs)\n",
              s.mebibytes, static_cast<unsigned long long>(s.every), s.runs);
  std::printf("%8s %12s %10s %10s %10s %8s %8s %10s %12s\n", "workers", "mirror", "without", "with", "again", "cost %",
              "noise %", "attempts", "superseded");
  std::vector<std::pair<const char*, std::string>> places{{"directory", directory.string()},
                                                          {"rclone", "rclone::local:" + directory.string()}};
  if (!s.node.empty())
    places.emplace_back("node", "node:" + s.node);
  for (const auto workers : {1u, 2u})
    for (const auto& [name, place] : places) {
      if (!has_rclone && place.starts_with("rclone:")) {
        std::printf("%8u %12s   rclone is not installed\n", workers, name);
        continue;
      }
      std::vector<double> without;
      std::vector<double> with;
      std::vector<double> again;
      std::uint64_t superseded = 0;
      std::uint64_t failed = 0;
      for (unsigned i = 0; i < s.runs; ++i) {
        without.push_back(fit(app, train, s, workers, rounds, "").metrics.at("seconds_per_step"));
        const auto mirrored = fit(app, train, s, workers, rounds, place);
        fs::remove_all(directory);
        if (mirrored.mirror.reason.code != troupe::errc::none)
          throw troupe::exception{mirrored.mirror.reason};
        with.push_back(mirrored.metrics.at("seconds_per_step"));
        superseded += mirrored.mirror.superseded;
        failed += mirrored.mirror.failed_attempts;
        again.push_back(fit(app, train, s, workers, rounds, "").metrics.at("seconds_per_step"));
      }
      auto all = without;
      all.insert(all.end(), again.begin(), again.end());
      const auto copied = s.runs * ((s.steps - 1) / s.every + 1) - superseded;
      std::printf("%8u %12s %10.3f %10.3f %10.3f %8.2f %8.2f %10llu %12llu\n", workers, name, 1000 * median(without),
                  1000 * median(with), 1000 * median(again), 100 * (median(with) / median(all) - 1),
                  100 * std::abs(median(again) / median(without) - 1),
                  static_cast<unsigned long long>(copied) + static_cast<unsigned long long>(failed),
                  static_cast<unsigned long long>(superseded));
      std::fflush(stdout);
    }
}

} // namespace

int main(int argc, char** argv) {
  auto train = troupe::function{"state", train_state};
  auto app = troupe::app{argc, argv, {train}};
  settings s;
  CLI::App cli{"Measures what a run's mirror costs a step.", "troupe-mirror"};
  cli.add_option("--storage", s.storage, "Directory for checkpoints")->capture_default_str();
  cli.add_option("--mirror", s.mirror, "Directory for their copies, on the device to measure")->capture_default_str();
  cli.add_option("--node", s.node,
                 "HOST:PORT of a node that keeps mirrors (caf-node --mirror DIRECTORY), to measure, too");
  cli.add_option("--runs", s.runs, "Runs of each measurement; medians are shown")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  cli.add_option("--steps", s.steps, "Steps of each run")->capture_default_str()->check(CLI::Range(10, 1'000'000));
  cli.add_option("--checkpoint-every", s.every, "Steps between checkpoints")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  cli.add_option("--mib", s.mebibytes, "MiB of the state")->capture_default_str()->check(CLI::Range(1, 65'536));
  cli.add_option("--step-ms", s.step_ms, "Milliseconds that a step computes")
      ->capture_default_str()
      ->check(troupe::apps::positive_number());
  if (auto code = troupe::apps::parse_command_line(cli, argc, argv))
    return *code;
  try {
    measure(app, train, s);
    return 0;
  } catch (const std::exception& x) {
    std::fprintf(stderr, "troupe-mirror: %s\n", x.what());
    return 1;
  }
}

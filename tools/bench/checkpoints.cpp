// Measures what checkpoints cost during training. See checkpoints.md.

#include "timing.hpp"

#include <command_line.hpp>

#include <troupe/troupe.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <unistd.h>
#include <vector>

namespace {

namespace fs = std::filesystem;
using namespace troupe::bench;

/// Keeps the processor busy, as a step's arithmetic does.
void compute(std::chrono::microseconds how_long) {
  for (auto start = clock_type::now(); clock_type::now() - start < how_long;)
    ;
}

/// The time that the machine takes to copy the same number of bytes into memory that is already mapped.
double time_of_copy(const std::vector<float>& state, std::size_t bytes) {
  std::vector<char> target(bytes, 1);
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    auto start = clock_type::now();
    std::memcpy(target.data(), state.data(), bytes);
    seconds.push_back(seconds_since(start));
    if (target[bytes / 2] == 1)
      throw troupe::exception{troupe::errc::internal, "nothing was copied"};
  }
  return median(seconds);
}

/// Steps of fixed length over a state of fixed size. In the last step it reports how long training paused between two
/// steps, with and without a checkpoint.
void train_state(troupe::train_context& ctx) {
  auto elements = ctx.config().at("bytes").get<std::size_t>() / sizeof(float);
  auto length = std::chrono::microseconds{ctx.config().at("step_us").get<std::int64_t>()};
  auto every = ctx.options().at("every").get<std::uint64_t>();
  std::vector<float> state(elements, 1.5f);
  ctx.state().track("state", state);
  auto copy = time_of_copy(state, elements * sizeof(float) / ctx.world_size());
  std::vector<double> ordinary;
  std::vector<double> with_checkpoint;
  clock_type::time_point start;
  clock_type::time_point end_of_step;
  troupe::step_plan plan;
  plan.data = {64, "bench"};
  plan.batch_samples = 64;
  plan.gradient_elements = 16;
  ctx.for_each_step(plan, [&](troupe::step& step) {
    // The first few run with cold memory.
    if (step.number() > 3) {
      auto is_due = every > 0 && (step.number() - 1) % every == 0;
      (is_due ? with_checkpoint : ordinary).push_back(seconds_since(end_of_step));
    }
    for (auto& shard : step.shards()) {
      compute(length / ctx.config().at("shards").get<int>());
      shard.add("loss", 1.0);
    }
    step.all_reduce();
    state[step.number() % elements] += 1;
    if (step.number() == 1)
      start = clock_type::now();
    if (step.last())
      step.report({{"seconds", seconds_since(start)},
                   {"copy", copy},
                   {"ordinary", median(ordinary)},
                   {"with_checkpoint", median(with_checkpoint)}});
    end_of_step = clock_type::now();
  });
}

struct settings {
  fs::path storage = fs::temp_directory_path();
  unsigned runs = 5;
  bool quick = false;
};

struct load {
  std::uint32_t workers = 1;
  std::size_t bytes = 0;
  std::int64_t step_us = 0;
  std::uint64_t steps = 0;
  std::uint64_t every = 0;
  std::uint32_t in_flight = 1;
};

troupe::run_result fit(const troupe::app& app, const troupe::function& train, const settings& s, const load& what) {
  auto storage = s.storage / fmt::format("troupe-checkpoints-{}", ::getpid());
  constexpr std::uint32_t shards = 4;
  troupe::trainer_config config;
  config.scaling = {.num_workers = what.workers, .shards = shards};
  config.run.storage_path = storage;
  config.run.steps = what.steps;
  config.checkpoint.every_steps = what.every;
  config.checkpoint.max_in_flight = what.in_flight;
  config.config = {{"bytes", what.bytes}, {"step_us", what.step_us}, {"shards", shards}};
  config.options = {{"every", what.every}};
  auto trainer = troupe::trainer{app, train, config};
  auto result = trainer.fit();
  fs::remove_all(storage);
  if (result.status != troupe::run_status::completed)
    throw troupe::exception{result.reason};
  return result;
}

constexpr double mebibyte = 1024.0 * 1024.0;

void measure_blocking(const troupe::app& app, const troupe::function& train, const settings& s) {
  std::printf("How long training pauses for a checkpoint (ms), and copying as many bytes (ms)\n");
  std::printf("%8s %12s %12s %12s %12s\n", "workers", "MiB each", "pause", "memcpy", "ratio");
  for (auto workers : {1u, 2u})
    for (std::size_t mib : s.quick ? std::vector<std::size_t>{64} : std::vector<std::size_t>{16, 64, 256, 1024}) {
      std::vector<double> still;
      std::vector<double> copies;
      for (auto i = 0u; i < s.runs; ++i) {
        // Enough steps between two checkpoints that none is skipped.
        auto metrics = fit(app, train, s, {workers, mib << 20, mib > 256 ? 300'000 : 60'000, 42, 20}).metrics;
        still.push_back((metrics.at("with_checkpoint") - metrics.at("ordinary")) * 1000);
        copies.push_back(metrics.at("copy") * 1000);
      }
      std::printf("%8u %12.1f %12.2f %12.2f %12.2f\n", workers, static_cast<double>(mib) / workers, median(still),
                  median(copies), median(still) / median(copies));
      std::fflush(stdout);
    }
}

void measure_steps(const troupe::app& app, const troupe::function& train, const settings& s) {
  std::printf("\nThe same steps with checkpoints and without (seconds), and the difference for each step\n");
  std::printf("%8s %8s %8s %8s %9s %10s %10s %8s %8s %10s\n", "workers", "MiB", "step ms", "every", "in flight", "with",
              "without", "cost %", "skipped", "2 % every");
  auto loads = std::vector<load>{{1, std::size_t{1'873'152}, 5'000, 401, 10},
                                 {2, std::size_t{1'873'152}, 5'000, 401, 10},
                                 {2, std::size_t{1'873'152}, 5'000, 401, 10, 2}};
  if (!s.quick) {
    loads.push_back({1, std::size_t{1} << 30, 50'000, 401, 200});
    loads.push_back({2, std::size_t{1} << 30, 50'000, 401, 200});
  }
  for (const auto& what : loads) {
    std::vector<double> with;
    std::vector<double> without;
    std::uint64_t skipped = 0;
    for (auto i = 0u; i < s.runs; ++i) {
      auto result = fit(app, train, s, what);
      skipped = std::max(skipped, result.due_checkpoints.skipped);
      with.push_back(result.metrics.at("seconds"));
      auto none = what;
      none.every = 0;
      without.push_back(fit(app, train, s, none).metrics.at("seconds"));
    }
    const auto checkpoints = (what.steps - 1) / what.every;
    auto cost = (median(with) - median(without)) / static_cast<double>(checkpoints);
    auto step = median(without) / static_cast<double>(what.steps - 1);
    std::printf("%8u %8.1f %8.1f %8llu %9u %10.3f %10.3f %8.1f %8llu %10.0f\n", what.workers,
                static_cast<double>(what.bytes) / mebibyte, step * 1000, static_cast<unsigned long long>(what.every),
                what.in_flight, median(with), median(without), 100 * (median(with) / median(without) - 1),
                static_cast<unsigned long long>(skipped), std::max(1.0, cost / (0.02 * step)));
    std::fflush(stdout);
  }
}

} // namespace

int main(int argc, char** argv) {
  auto train = troupe::function{"state", train_state};
  auto app = troupe::app{argc, argv, {train}};
  settings s;
  CLI::App cli{"Measures what checkpoints cost during training.", "troupe-checkpoints"};
  cli.add_option("--storage", s.storage, "Directory for checkpoints, on the device to measure")->capture_default_str();
  cli.add_option("--runs", s.runs, "Runs of each measurement; medians are shown")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  cli.add_flag("--quick", s.quick, "Measure small states only");
  if (auto code = troupe::apps::parse_command_line(cli, argc, argv))
    return *code;
  try {
    measure_blocking(app, train, s);
    measure_steps(app, train, s);
    return 0;
  } catch (const std::exception& x) {
    std::fprintf(stderr, "troupe-checkpoints: %s\n", x.what());
    return 1;
  }
}

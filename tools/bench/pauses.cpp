// Measures how long a run pauses when workers are lost, join or leave. See pauses.md.

#include <command_line.hpp>

#include <troupe/runtime/node_host.hpp>
#include <troupe/troupe.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::uint32_t shards = 8;
constexpr auto shard_time = 1ms;

/// Steps that take `shard_time` for each shard, whatever the load of the machine, over a state of given size.
void train(troupe::train_context& ctx) {
  std::vector<float> weights(ctx.config().at("state_bytes").get<std::size_t>() / sizeof(float));
  ctx.state().track("weights", weights);
  troupe::step_plan plan;
  plan.data = {1024, "pauses"};
  plan.batch_samples = 64;
  plan.gradient_elements = 1024;
  ctx.for_each_step(plan, [&](troupe::step& step) {
    for (auto& shard : step.shards()) {
      std::this_thread::sleep_for(shard_time);
      std::ranges::fill(shard.gradient(), 1.0f);
    }
    auto gradient = step.all_reduce();
    for (std::size_t i = 0; i < gradient.size(); ++i)
      weights[i] += gradient[i];
    step.report({{"step", static_cast<double>(step.number())}});
  });
}

/// The callbacks' reports about a run, for the thread that waits for it.
class run_watch {
 public:
  troupe::run_callbacks callbacks() {
    troupe::run_callbacks result;
    result.started = [this](const troupe::run_started& x) { set_members(x.workers); };
    result.regrouped = [this](const troupe::generation_record& x) { set_members(x.members); };
    result.progress = [this](const troupe::run_progress& x) {
      auto lock = std::lock_guard{mutex_};
      step_ = x.step;
      changed_.notify_all();
    };
    result.notice = [](const troupe::run_notice&) {};
    result.output = [](std::uint32_t, const std::string&) {};
    return result;
  }

  /// Waits until a generation newer than the last one returned, with `n` members, has trained for a few steps. Empty if
  /// that does not happen.
  std::optional<std::vector<troupe::worker_info>> wait_for(std::size_t n) {
    auto lock = std::unique_lock{mutex_};
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    for (;;) {
      if (!changed_.wait_until(lock, deadline, [&] { return formed_ > returned_ && members_.size() == n; }))
        return std::nullopt;
      const auto formed = formed_;
      const auto from = step_;
      if (!changed_.wait_until(lock, deadline, [&] { return formed_ != formed || step_ > from + 10; }))
        return std::nullopt;
      if (formed_ == formed) {
        returned_ = formed;
        return members_;
      }
    }
  }

 private:
  void set_members(std::vector<troupe::worker_info> members) {
    auto lock = std::lock_guard{mutex_};
    members_ = std::move(members);
    ++formed_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<troupe::worker_info> members_;
  std::uint64_t formed_ = 0;
  std::uint64_t returned_ = 0;
  std::uint64_t step_ = 0;
};

struct settings {
  unsigned events = 40;
  std::vector<std::uint32_t> workers = {2, 4, 8};
  std::uint64_t seed = 1;
  std::uint64_t state_bytes = std::uint64_t{256} << 20;
};

troupe::trainer_config make_config(std::uint32_t workers, std::uint64_t state_bytes) {
  troupe::trainer_config config;
  config.scaling = {.num_workers = workers, .shards = shards};
  config.run.name = "pauses";
  config.run.storage_path = fs::temp_directory_path() / fmt::format("troupe-pauses-{}", ::getpid());
  config.run.steps = 1'000'000;
  config.failure.max_failures = 1'000'000;
  config.config = {{"state_bytes", state_bytes}};
  return config;
}

/// Runs until `disturb` has returned; returns the generations.
template <class Disturb>
std::vector<troupe::generation_record> disturbed_run(const troupe::app& app, const troupe::function& train,
                                                     const troupe::trainer_config& config, Disturb disturb) {
  run_watch watch;
  auto trainer = troupe::trainer{app, train, config};
  trainer.set_callbacks(watch.callbacks());
  std::exception_ptr trouble;
  auto hand = std::thread{[&] {
    try {
      disturb(watch);
    } catch (...) {
      trouble = std::current_exception();
    }
    trainer.stop();
  }};
  auto result = trainer.fit();
  hand.join();
  if (trouble)
    std::rethrow_exception(trouble);
  fs::remove_all(config.run.storage_path);
  if (result.status == troupe::run_status::failed)
    throw troupe::exception{result.reason};
  return result.generations;
}

/// Repeatedly sends a signal to one or all of the workers, each time when all are training.
auto hit(const settings& s, std::uint32_t workers, int signal, bool all) {
  return [=, random = std::mt19937_64{s.seed}](run_watch& watch) mutable {
    for (auto i = 0u; i < s.events; ++i) {
      auto members = watch.wait_for(workers);
      if (!members)
        throw troupe::exception{troupe::errc::timed_out, "the run did not return to its number of workers"};
      // At a random moment within a step.
      std::this_thread::sleep_for(std::chrono::microseconds{random() % 8000});
      auto victim = random() % members->size();
      for (std::size_t k = 0; k < members->size(); ++k)
        if (all || k == victim)
          ::kill(static_cast<pid_t>((*members)[k].pid), signal);
    }
    watch.wait_for(workers);
  };
}

struct summary {
  std::vector<double> pauses_ms;
  std::uint64_t redone = 0;

  void add(const troupe::generation_record& x) {
    if (x.pause_seconds > 0)
      pauses_ms.push_back(x.pause_seconds * 1000);
    redone += x.steps_redone;
  }

  void print(const char* what, std::uint32_t workers) const {
    auto sorted = pauses_ms;
    if (sorted.empty())
      throw troupe::exception{troupe::errc::internal, fmt::format("{}: nothing was measured", what)};
    std::ranges::sort(sorted);
    auto at = [&](double part) {
      return sorted[std::min(sorted.size() - 1, static_cast<std::size_t>(part * static_cast<double>(sorted.size())))];
    };
    std::printf("%-28s %8u %7zu %9.1f %9.1f %9.1f %9.2f\n", what, workers, sorted.size(), at(0.5), at(0.99),
                sorted.back(), static_cast<double>(redone) / static_cast<double>(sorted.size()));
    std::fflush(stdout);
  }
};

/// Prints losses (fewer workers than before) and the joining of replacements.
void measure_hits(const troupe::app& app, const troupe::function& train, const settings& s, const char* what,
                  std::uint32_t workers, int signal, std::uint64_t state_bytes) {
  summary losses;
  summary joins;
  for (const auto& each : disturbed_run(app, train, make_config(workers, state_bytes), hit(s, workers, signal, false)))
    (each.workers < workers ? losses : joins).add(each);
  losses.print(what, workers);
  joins.print("  a replacement joins", workers);
}

void measure_restarts(const troupe::app& app, const troupe::function& train, const settings& s, std::uint32_t workers) {
  auto config = make_config(workers, 1 << 20);
  config.checkpoint.every_steps = 50;
  summary restarts;
  for (const auto& each : disturbed_run(app, train, config, hit(s, workers, SIGKILL, true)))
    if (each.attempt > 1)
      restarts.add(each);
  restarts.print("all killed: a restart", workers);
}

/// Two nodes leave and return in turn.
void measure_drains(const troupe::app& app, const troupe::function& train, const settings& s, std::uint32_t workers) {
  auto options = troupe::runtime::node_options{};
  options.listen = {"127.0.0.1", 0};
  auto make_node = [&](const troupe::endpoint& where) {
    options.listen = where;
    return std::make_unique<troupe::runtime::node_host>(
        troupe::value_or_throw(troupe::runtime::node_host::start(options)));
  };
  std::vector<std::unique_ptr<troupe::runtime::node_host>> nodes;
  nodes.push_back(make_node({"127.0.0.1", 0}));
  nodes.push_back(make_node({"127.0.0.1", 0}));
  auto config = make_config(workers, 1 << 20);
  config.scaling.placement = troupe::placement_strategy::spread;
  for (const auto& node : nodes)
    config.cluster.nodes.push_back(to_string(node->address()));
  auto drain = [&](run_watch& watch) {
    for (auto i = 0u; i < s.events; ++i) {
      if (!watch.wait_for(workers))
        throw troupe::exception{troupe::errc::timed_out, "the run did not return to its number of workers"};
      auto& node = nodes[i % 2];
      auto where = node->address();
      node->drain(20s);
      while (!node->drained())
        std::this_thread::sleep_for(1ms);
      node.reset();
      node = make_node(where);
      // The driver dials the node again once a second.
      std::this_thread::sleep_for(1500ms);
    }
    watch.wait_for(workers);
  };
  summary drains;
  for (const auto& each : disturbed_run(app, train, config, drain))
    drains.add(each);
  drains.print("a node is drained", workers);
}

/// The lower bound for a joiner's state: the median time of a copy of it.
void print_copy(std::uint64_t bytes) {
  std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes, 2);
  std::vector<double> ms;
  for (int i = 0; i < 9; ++i) {
    auto begin = std::chrono::steady_clock::now();
    std::memcpy(to.data(), from.data(), bytes);
    ms.push_back(std::chrono::duration<double, std::milli>{std::chrono::steady_clock::now() - begin}.count());
    from[static_cast<std::size_t>(i)] = to[bytes / 2];
  }
  std::ranges::sort(ms);
  std::printf("%-28s %8s %7zu %9.1f\n", "  a copy of that state", "", ms.size(), ms[ms.size() / 2]);
}

} // namespace

int main(int argc, char** argv) {
  auto train = troupe::function{"train", ::train};
  auto app = troupe::app{argc, argv, {train}};
  settings s;
  auto only = std::string{"all"};
  CLI::App cli{"Measures how long a run pauses: from the last step before a loss to the first step after it.",
               "troupe-pauses"};
  cli.add_option("--events", s.events, "Events of each kind")->capture_default_str()->check(CLI::Range(1, 100000));
  cli.add_option("--workers", s.workers, "Numbers of workers")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(2u, shards));
  cli.add_option("--seed", s.seed, "Determines the victims and times")->capture_default_str();
  cli.add_option("--state-bytes", s.state_bytes, "Size of the state that a joiner receives in the last row")
      ->capture_default_str();
  cli.add_option("--only", only, "Measure only this kind")
      ->check(CLI::IsMember({"all", "kill", "freeze", "restart", "drain", "join"}))
      ->capture_default_str();
  if (auto code = troupe::apps::parse_command_line(cli, argc, argv))
    return *code;
  auto wanted = [&](const char* kind) { return only == "all" || only == kind; };
  try {
    std::printf("Steps of %lld ms on one worker; pauses in ms, from the last step before to the first after\n",
                static_cast<long long>((shards * shard_time).count()));
    std::printf("%-28s %8s %7s %9s %9s %9s %9s\n", "", "workers", "events", "p50", "p99", "max", "redone");
    if (wanted("kill"))
      for (auto workers : s.workers)
        measure_hits(app, train, s, "one killed", workers, SIGKILL, 1 << 20);
    if (wanted("freeze"))
      for (auto workers : s.workers)
        measure_hits(app, train, s, "one frozen", workers, SIGSTOP, 1 << 20);
    if (wanted("restart"))
      measure_restarts(app, train, s, 4);
    if (wanted("drain"))
      for (auto workers : s.workers)
        measure_drains(app, train, s, workers);
    if (wanted("join"))
      for (auto workers : s.workers)
        measure_hits(app, train, s, "one killed, large state", workers, SIGKILL, s.state_bytes);
    if (wanted("join"))
      print_copy(s.state_bytes);
    return 0;
  } catch (const std::exception& x) {
    std::fprintf(stderr, "troupe-pauses: %s\n", x.what());
    return 1;
  }
}

// Times sums over the processes of this machine and prints one line for each contender and size. See ../README.md;
// `run` adds Open MPI and makes the tables.

#include "contender.hpp"
#include "rank_link.hpp"

#include <command_line.hpp>
#include <fmt/format.h>

#include <timing.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <memory>
#include <sched.h>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace troupe::bench;

struct options {
  std::uint32_t ranks = 2;
  std::vector<std::uint64_t> sizes = {4096, 1 << 20, 64 << 20};
  std::vector<std::string> names = {"exact", "fast",          "in-place",         "unregistered",
                                    "limit", "exact-touched", "in-place-touched", "limit-touched"};
  double seconds = 0.1;
  std::uint32_t repeats = 3;
  std::vector<std::string> hosts = {};
};

/// Moves this process into its namespace, given as NAMESPACE=ADDRESS; returns the address. Ranks are spread evenly.
std::string enter_host(const options& wanted, std::uint32_t rank) {
  if (wanted.hosts.empty())
    return "127.0.0.1";
  const auto& host = wanted.hosts[std::size_t{rank} * wanted.hosts.size() / wanted.ranks];
  const auto end = host.find('=');
  if (end == std::string::npos)
    throw std::runtime_error{host + ": expected NAMESPACE=ADDRESS"};
  const auto name = host.substr(0, end);
  const auto there = troupe::collectives::unique_fd{::open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC)};
  if (!there || ::setns(there.get(), CLONE_NEWNET) != 0)
    throw std::runtime_error{fmt::format("the network namespace {}: {}", name, std::strerror(errno))};
  return host.substr(end + 1);
}

/// Whole numbers, so that their sum is the same in any order; they differ between ranks and indices.
std::uint64_t place_of(std::uint64_t element) {
  return (element * 11 + (element >> 10) * 7) % 64;
}

float value_of(std::uint32_t rank, std::uint64_t place) {
  return static_cast<float>((std::uint64_t{rank} * 37 + place) % 64);
}

void fill(std::span<float> input, std::uint32_t rank) {
  for (std::uint64_t i = 0; i < input.size(); ++i)
    input[i] = value_of(rank, place_of(i));
}

/// Compares every element.
void check_sum(const contender& x, const std::string& name, std::uint32_t ranks) {
  std::array<float, 64> sums = {};
  for (std::uint64_t place = 0; place < sums.size(); ++place)
    for (std::uint32_t r = 0; r < ranks; ++r)
      sums[place] += value_of(r, place);
  const auto result = x.result();
  for (std::uint64_t i = 0; i < result.size(); ++i)
    if (result[i] != sums[place_of(x.first_element() + i)])
      throw std::runtime_error{fmt::format("{}: wrong sum of element {}", name, x.first_element() + i)};
}

/// Seconds per run over `iterations` consecutive runs, on the slowest rank.
double time_of(contender& x, rank_link& link, std::uint64_t iterations) {
  link.barrier();
  const auto start = clock_type::now();
  for (std::uint64_t i = 0; i < iterations; ++i)
    x.run();
  const auto mine = std::chrono::duration<double>(clock_type::now() - start).count();
  return link.maximum(mine) / static_cast<double>(iterations);
}

/// Warms up and determines how many runs take `seconds`.
std::uint64_t iterations_for(contender& x, rank_link& link, double seconds) {
  for (std::uint64_t iterations = 1;; iterations *= 2) {
    const auto each = time_of(x, link, iterations);
    if (each * static_cast<double>(iterations) >= seconds / 2)
      return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(seconds / each));
  }
}

void measure_size(contender_factory& factory, rank_link& link, const options& wanted, std::uint64_t bytes) {
  std::vector<std::unique_ptr<contender>> contenders;
  for (const auto& name : wanted.names) {
    contenders.push_back(factory.make(name, bytes));
    auto& x = *contenders.back();
    fill(x.input(), link.rank());
    // `limit` reads what its peers have written without waiting for them.
    link.barrier();
    x.run();
    check_sum(x, name, link.size());
    link.barrier();
  }
  // Repeated sums in place would soon overflow to infinity.
  for (auto& x : contenders)
    std::ranges::fill(x->input(), 0.0f);
  std::vector<std::uint64_t> iterations;
  for (auto& x : contenders)
    iterations.push_back(iterations_for(*x, link, wanted.seconds));
  std::vector<std::vector<double>> times(contenders.size());
  for (std::uint32_t repeat = 0; repeat < wanted.repeats; ++repeat)
    for (std::size_t i = 0; i < contenders.size(); ++i)
      times[i].push_back(time_of(*contenders[i], link, iterations[i]));
  if (link.rank() != 0)
    return;
  for (std::size_t i = 0; i < contenders.size(); ++i)
    std::printf("time what=%s ranks=%u bytes=%llu us=%.3f least=%.3f iterations=%llu\n", wanted.names[i].c_str(),
                link.size(), static_cast<unsigned long long>(bytes), median(times[i]) * 1e6,
                std::ranges::min(times[i]) * 1e6, static_cast<unsigned long long>(iterations[i]));
  std::fflush(stdout);
}

std::vector<std::string> known_names() {
  return {contender_names().begin(), contender_names().end()};
}

} // namespace

int main(int argc, char** argv) {
  options wanted;
  CLI::App app{"Times all-reduces of f32 sums among processes of this machine."};
  app.add_option("--ranks", wanted.ranks, "Processes")->check(CLI::IsMember({1, 2, 4, 8, 16}))->capture_default_str();
  app.add_option("--sizes", wanted.sizes, "Bytes per rank")
      ->delimiter(',')
      ->check(CLI::Range(std::uint64_t{4}, std::uint64_t{1} << 32))
      ->capture_default_str();
  app.add_option("--what", wanted.names, "Contenders, timed alternately")
      ->delimiter(',')
      ->check(CLI::IsMember(known_names()))
      ->capture_default_str();
  app.add_option("--seconds", wanted.seconds, "Seconds for each timing")
      ->check(troupe::apps::positive_number())
      ->capture_default_str();
  app.add_option("--repeats", wanted.repeats, "Number of timings; medians are shown")
      ->check(troupe::apps::positive_number())
      ->capture_default_str();
  app.add_option("--hosts", wanted.hosts, "NAMESPACE=ADDRESS: the network namespaces that the ranks are spread over")
      ->delimiter(',');
  if (const auto code = troupe::apps::parse_command_line(app, argc, argv))
    return *code;
  try {
    const auto is_well = run_ranks(wanted.ranks, [&wanted](rank_link& link) {
      contender_factory factory{link, enter_host(wanted, link.rank())};
      for (const auto bytes : wanted.sizes)
        measure_size(factory, link, wanted, bytes / sizeof(float) * sizeof(float));
      // Ranks leave a group only when all have finished.
      link.barrier();
    });
    return is_well ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& x) {
    std::fprintf(stderr, "collectives_bench: %s\n", x.what());
    return EXIT_FAILURE;
  }
}

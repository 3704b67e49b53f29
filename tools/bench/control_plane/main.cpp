// Measures the control plane with many workers, which are simulated: how long a run takes to start and to regroup, and
// what its driver needs. See README.md.

#include "simulated_run.hpp"

#include <command_line.hpp>

#include <troupe/error.hpp>

#include <cstdio>
#include <exception>
#include <fmt/format.h>
#include <string>
#include <vector>

namespace {

using troupe::bench::run_measures;

/// The limits of a run of any size.
constexpr auto most_start_ms = 2000.0;
constexpr auto most_regroup_ms = 200.0;
constexpr auto most_kib_per_worker = 64.0;

/// The factor by which a worker of the largest run may cost the driver more than one of the smallest. Measured in
/// processor time, which a busy machine hardly changes.
constexpr auto most_growth = 2.0;

double kib_per_worker(const run_measures& x) {
  return static_cast<double>(x.memory_bytes) / 1024 / x.workers;
}

void print_head() {
  fmt::print("{:>8} {:>6} {:>9} {:>9} {:>11} {:>11} {:>11} {:>11}\n", "", "", "start", "driver", "regroup", "regroup",
             "driver", "driver");
  fmt::print("{:>8} {:>6} {:>9} {:>9} {:>11} {:>11} {:>11} {:>11}\n", "workers", "hosts", "ms", "CPU ms", "decided ms",
             "formed ms", "CPU ms", "KiB/worker");
}

void print(const run_measures& x) {
  fmt::print("{:>8} {:>6} {:>9.1f} {:>9.1f} {:>11.1f} {:>11.1f} {:>11.1f} {:>11.1f}\n", x.workers, x.hosts, x.start_ms,
             x.start_cpu_ms, x.decided_ms, x.formed_ms, x.regroup_cpu_ms, kib_per_worker(x));
  std::fflush(stdout);
}

/// Prints which aims are met. False if one is missed.
bool check_aims(const std::vector<run_measures>& rows) {
  auto all = true;
  auto check = [&](const std::string& what, double value, double most, const char* unit) {
    all = all && value <= most;
    fmt::print("{:<58} {:>9.1f} {:<3} aim {:>6.1f} {}\n", what, value, unit, most, value <= most ? "met" : "MISSED");
  };
  const auto& largest = rows.back();
  const auto of = fmt::format(" of {} workers", largest.workers);
  check("start" + of, largest.start_ms, most_start_ms, "ms");
  check("a regroup" + of, largest.formed_ms, most_regroup_ms, "ms");
  check("driver memory" + of, kib_per_worker(largest), most_kib_per_worker, "KiB");
  const auto& smallest = rows.front();
  if (smallest.workers == largest.workers)
    return all;
  const auto factor = static_cast<double>(largest.workers) / smallest.workers;
  const auto growth = fmt::format(" a worker, compared with {} workers", smallest.workers);
  check("CPU of a start" + growth, largest.start_cpu_ms / smallest.start_cpu_ms / factor, most_growth, "x");
  check("CPU of a regroup" + growth, largest.regroup_cpu_ms / smallest.regroup_cpu_ms / factor, most_growth, "x");
  check("driver memory" + growth, kib_per_worker(largest) / kib_per_worker(smallest), most_growth, "x");
  return all;
}

} // namespace

int main(int argc, char** argv) {
  std::vector<std::uint32_t> sizes{64, 128, 256, 512, 1024};
  troupe::bench::run_shape shape;
  auto is_check = false;
  CLI::App cli{"Measures a driver with many workers, which are simulated: actors that speak the protocol of a worker, "
               "with real nodes in a process for each host. Ends with 1 if an aim is missed.",
               "troupe-control-plane"};
  cli.add_option("--workers", sizes, "Numbers of workers, ascending")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(2u, 16384u));
  cli.add_option("--workers-per-host", shape.workers_per_host, "Workers of each simulated host")
      ->capture_default_str()
      ->check(CLI::Range(1u, 16384u));
  cli.add_option("--kills", shape.kills, "Regroups of each run, of which the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1000u));
  cli.add_flag("--without-aims", is_check, "Only see whether the runs work");
  if (auto code = troupe::apps::parse_command_line(cli, argc, argv))
    return *code;
  try {
    print_head();
    std::vector<run_measures> rows;
    for (auto workers : sizes) {
      shape.workers = workers;
      rows.push_back(troupe::bench::measure_run(shape));
      print(rows.back());
    }
    return is_check || check_aims(rows) ? 0 : 1;
  } catch (const std::exception& x) {
    std::fprintf(stderr, "troupe-control-plane: %s\n", x.what());
    return 1;
  }
}

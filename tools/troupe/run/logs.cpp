#include "run/control_commands.hpp"

#include "checkpoint/text.hpp"

#include <troupe/runtime/worker_log.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <thread>

namespace troupe::tool {

namespace {

using runtime::known_log;
using runtime::list_logs;
using runtime::log_path;
using runtime::worker_log;
using namespace std::chrono_literals;

/// Between two looks at logs that grow.
constexpr auto look_interval = 100ms;

void print(const known_log& from, const std::string& line, output_format output) {
  if (output == output_format::json) {
    auto row = json{{"worker", from.worker}};
    if (from.rank)
      row["rank"] = *from.rank;
    row["line"] = line;
    fmt::print("{}\n", row.dump(-1, ' ', false, json::error_handler_t::replace));
  } else if (from.rank) {
    fmt::print("[rank {}] {}\n", *from.rank, line);
  } else {
    fmt::print("[worker {}] {}\n", from.worker, line);
  }
}

/// The logs that were asked for, and those that come to be while they are followed.
class log_reader {
 public:
  log_reader(std::filesystem::path run, const logs_arguments& given) : run_(std::move(run)), given_(given) {}

  /// Prints what is new. Returns how many logs there are.
  std::size_t read() {
    for (const auto& each : list_logs(run_)) {
      if (given_.rank && each.rank != given_.rank)
        continue;
      const auto [known, is_new] = logs_.try_emplace(each.worker, log_path(run_, each.worker));
      // A log that came later is followed from its beginning.
      if (is_new && given_.lines && !has_read_)
        known->second.skip_to_last(*given_.lines);
      known->second.read([&](const std::string& line) { print(each, line, given_.which.output); });
    }
    has_read_ = true;
    std::fflush(stdout);
    return logs_.size();
  }

  /// The last lines, if the workers did not end them.
  void finish() {
    for (const auto& each : list_logs(run_))
      if (const auto known = logs_.find(each.worker); known != logs_.end())
        known->second.flush([&](const std::string& line) { print(each, line, given_.which.output); });
  }

 private:
  std::filesystem::path run_;
  const logs_arguments& given_;
  std::map<std::uint32_t, worker_log> logs_;
  bool has_read_ = false;
};

/// Prints until the end, or for as long as the run has a driver. Returns how many logs there were.
std::size_t print_all(log_reader& reader, const runtime::run_access& run, const logs_arguments& given) {
  auto goes_on = given.follows;
  auto count = std::size_t{0};
  do {
    // What is written before the driver goes is read after it.
    goes_on = goes_on && run.has_driver();
    count = reader.read();
    if (goes_on)
      std::this_thread::sleep_for(look_interval);
  } while (goes_on);
  reader.finish();
  return count;
}

} // namespace

int logs(const logs_arguments& given) {
  const auto run = open_run(given.which);
  if (!run)
    return complain(run.error());
  auto reader = log_reader{run->directory(), given};
  if (print_all(reader, *run, given) > 0)
    return exit_good;
  fmt::print(stderr, "troupe logs: {}\n",
             given.rank ? fmt::format("no worker of rank {} has written anything", *given.rank)
                        : std::string{"no worker has written anything"});
  return given.rank ? exit_found : exit_good;
}

} // namespace troupe::tool

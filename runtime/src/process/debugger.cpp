#include "process/debugger.hpp"

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/runtime/process_sample.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <fcntl.h>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>

namespace troupe::runtime {

namespace {

/// The kernel's limit.
constexpr std::size_t most_name_bytes = 15;

} // namespace

void wait_for_debugger(const std::string& host) {
  using namespace std::chrono_literals;
  // Else a usual setting (kernel.yama.ptrace_scope) lets only the parent attach.
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  std::fprintf(stderr, "waits for a debugger: gdb -p %d, on host %s\n", static_cast<int>(::getpid()), host.c_str());
  // The debugger stops this process when it attaches. This returns when it is continued.
  while (tracer_of(::getpid()) == 0)
    std::this_thread::sleep_for(50ms);
}

void set_process_name(const std::string& name) {
  // Kept open, because it is written in every step.
  static const auto file =
      collectives::unique_fd{::open(fmt::format("/proc/self/task/{}/comm", ::getpid()).c_str(), O_WRONLY | O_CLOEXEC)};
  [[maybe_unused]] const auto written = ::write(file.get(), name.data(), std::min(name.size(), most_name_bytes));
}

std::string worker_name(rank_id rank, step_id committed, const std::string& run) {
  return fmt::format("r{} s{} {}", rank, committed, run);
}

std::optional<step_id> committed_step_in(const std::string& name) {
  auto rank = 0U;
  auto step = std::uint64_t{0};
  auto length = 0;
  if (std::sscanf(name.c_str(), "r%u s%" SCNu64 "%n", &rank, &step, &length) != 2)
    return std::nullopt;
  // A number at the end may be cut off.
  const auto is_whole = static_cast<std::size_t>(length) < std::min(name.size(), most_name_bytes);
  return is_whole ? std::optional{step_id{step}} : std::nullopt;
}

} // namespace troupe::runtime

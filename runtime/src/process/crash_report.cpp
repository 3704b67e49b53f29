#include "process/crash_report.hpp"

#include <array>
#include <csignal>
#include <execinfo.h>
#include <string_view>
#include <unistd.h>

namespace troupe::runtime {

namespace {

/// More would push the worker's own last lines out of its failure record.
constexpr int most_frames = 12;

/// Writes where the thread is to standard error, and ends the process by the signal as if there had been no handler.
void on_crash(int signal) {
  std::array<void*, most_frames> frames{};
  constexpr std::string_view title = "backtrace (addr2line -Cfe PROGRAM ADDRESS names functions and lines):\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, title.data(), title.size());
  ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), most_frames), STDERR_FILENO);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

} // namespace

void report_crashes() {
  // The first call loads a library, which a crashed process should not.
  std::array<void*, 1> frame{};
  ::backtrace(frame.data(), 1);
  for (const auto each : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    struct sigaction before {};
    if (::sigaction(each, nullptr, &before) != 0 || before.sa_handler != SIG_DFL)
      continue;
    struct sigaction ours {};
    ours.sa_handler = on_crash;
    ours.sa_flags = SA_RESETHAND | SA_NODEFER;
    ::sigaction(each, &ours, nullptr);
  }
}

} // namespace troupe::runtime

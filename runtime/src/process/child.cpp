#include "process/child.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace troupe::runtime {

namespace {

/// `P_PIDFD` of <sys/wait.h>, which older C libraries lack.
constexpr auto wait_by_pidfd = static_cast<idtype_t>(3);

const char* signal_name(int signal) {
  const auto* name = sigabbrev_np(signal);
  return name == nullptr ? "?" : name;
}

} // namespace

std::string exit_report::describe() const {
  std::string result = "ended, but another part of this program took its exit status";
  if (exit_code)
    result = fmt::format("exit code {}", *exit_code);
  else if (signal)
    result = fmt::format("killed by signal {} (SIG{})", *signal, signal_name(*signal));
  if (core_dumped)
    result += ", core dumped";
  if (!evidence.empty())
    result += "; " + evidence;
  return result;
}

bool child::is_drained() const {
  return std::ranges::none_of(outputs, &output_pipe::is_open);
}

bool child::send_signal(int signal) const {
  return syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0) == 0;
}

void child::kill_group() {
  kill_requested = true;
  ::kill(-pid, SIGKILL);
  (void)send_signal(SIGKILL);
}

std::optional<exit_report> child::check_exit() const {
  siginfo_t info{};
  exit_report result;
  result.pid = pid;
  if (waitid(wait_by_pidfd, static_cast<id_t>(pidfd.get()), &info, WEXITED | WNOHANG | WNOWAIT) != 0)
    return result;
  if (info.si_pid == 0)
    return std::nullopt;
  if (info.si_code == CLD_EXITED)
    result.exit_code = info.si_status;
  else
    result.signal = info.si_status;
  result.core_dumped = info.si_code == CLD_DUMPED;
  // A zombie has no memory, but still its name.
  auto name = std::ifstream{fmt::format("/proc/{}/comm", pid)};
  std::getline(name, result.name);
  return result;
}

void child::reap() {
  siginfo_t info{};
  while (waitid(wait_by_pidfd, static_cast<id_t>(pidfd.get()), &info, WEXITED) != 0 && errno == EINTR)
    ;
  pidfd.reset();
}

} // namespace troupe::runtime

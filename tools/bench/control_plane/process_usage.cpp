#include "process_usage.hpp"

#include <troupe/error.hpp>

#include <ctime>
#include <fmt/format.h>
#include <fstream>
#include <string>

namespace troupe::bench {

resident_memory memory_of(pid_t process) {
  auto in = std::ifstream{fmt::format("/proc/{}/status", process)};
  resident_memory result;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmRSS:"))
      result.now_bytes = std::stoull(line.substr(6)) << 10;
    if (line.starts_with("VmHWM:"))
      result.most_bytes = std::stoull(line.substr(6)) << 10;
  }
  if (result.now_bytes == 0)
    throw exception{errc::not_found, fmt::format("process {} is gone", process)};
  return result;
}

std::chrono::nanoseconds cpu_time_of(pid_t process) {
  clockid_t clock{};
  timespec time{};
  if (::clock_getcpuclockid(process, &clock) != 0 || ::clock_gettime(clock, &time) != 0)
    throw exception{errc::not_found, fmt::format("process {} is gone", process)};
  return std::chrono::seconds{time.tv_sec} + std::chrono::nanoseconds{time.tv_nsec};
}

} // namespace troupe::bench

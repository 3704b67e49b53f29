#include "process/debugger.hpp"

#include <troupe/runtime/process_sample.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>

namespace troupe::runtime {

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
  std::ofstream{fmt::format("/proc/self/task/{}/comm", ::getpid())} << name.substr(0, 15);
}

} // namespace troupe::runtime

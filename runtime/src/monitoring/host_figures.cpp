#include "monitoring/host_figures.hpp"

#include <troupe/runtime/process_usage.hpp>

#include <chrono>
#include <unistd.h>

namespace troupe::runtime {

void host_figures::put(prometheus_text& out) {
  if (const auto usage = usage_of(::getpid())) {
    out.gauge("process_resident_memory_bytes", "Resident memory of this process.",
              static_cast<double>(usage->resident_bytes));
    out.counter("process_cpu_seconds_total", "Processor time of this process.",
                std::chrono::duration<double>(usage->cpu).count());
  }
  const auto lock = std::lock_guard{mutex_};
  put_gpus(out, gpus_.read());
}

} // namespace troupe::runtime

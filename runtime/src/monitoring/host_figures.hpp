#pragma once

#include "monitoring/gpu_reader.hpp"
#include "monitoring/prometheus_text.hpp"

#include <mutex>

namespace troupe::runtime {

/// What every endpoint says of its own process, by the names that Prometheus' client libraries use, and of the host's
/// GPUs. From any thread.
class host_figures {
 public:
  void put(prometheus_text& out);

 private:
  std::mutex mutex_;
  gpu_reader gpus_;
};

} // namespace troupe::runtime

#pragma once

#include "monitoring/prometheus_text.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe::runtime {

/// One GPU of this host.
struct gpu_figures {
  std::uint32_t index = 0;
  std::string name;
  std::string uuid;
  /// The part of the last sample period, of up to a second, in which a kernel ran: 0 to 1.
  double utilization = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t total_bytes = 0;

  bool operator==(const gpu_figures&) const = default;
};

/// Asks NVIDIA's management library (NVML), which comes with the driver and is opened at run time, about this host's
/// GPUs. From one thread at a time; a call may take milliseconds.
class gpu_reader {
 public:
  static constexpr auto default_library = "libnvidia-ml.so.1";

  /// Opens the library; without it there are no GPUs to read.
  explicit gpu_reader(const char* library = default_library);
  gpu_reader(const gpu_reader&) = delete;
  gpu_reader& operator=(const gpu_reader&) = delete;
  ~gpu_reader();

  /// All GPUs that answer.
  [[nodiscard]] std::vector<gpu_figures> read();

 private:
  class library;
  std::unique_ptr<library> library_;
};

void put_gpus(prometheus_text& out, const std::vector<gpu_figures>& gpus);

} // namespace troupe::runtime

#include "monitoring/gpu_reader.hpp"

#include <fmt/format.h>

#include <array>
#include <dlfcn.h>

namespace troupe::runtime {

namespace {

/// From NVML's API reference, as its driver has it since version 418: handles, results, and two structures.
using nvml_device = struct nvml_device_st*;
using nvml_result = int;
constexpr nvml_result nvml_success = 0;

struct nvml_utilization {
  /// In percent.
  unsigned gpu = 0;
  unsigned memory = 0;
};

struct nvml_memory {
  unsigned long long total = 0;
  unsigned long long free = 0;
  unsigned long long used = 0;
};

} // namespace

class gpu_reader::library {
 public:
  explicit library(const char* name) : handle_(::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr)
      return;
    find(init_, "nvmlInit_v2");
    find(shutdown_, "nvmlShutdown");
    find(count_, "nvmlDeviceGetCount_v2");
    find(device_, "nvmlDeviceGetHandleByIndex_v2");
    find(name_, "nvmlDeviceGetName");
    find(uuid_, "nvmlDeviceGetUUID");
    find(utilization_, "nvmlDeviceGetUtilizationRates");
    find(memory_, "nvmlDeviceGetMemoryInfo");
    is_usable_ = is_complete_ && init_() == nvml_success;
  }
  library(const library&) = delete;
  library& operator=(const library&) = delete;
  ~library() {
    if (is_usable_)
      shutdown_();
    if (handle_ != nullptr)
      ::dlclose(handle_);
  }

  std::vector<gpu_figures> read() {
    std::vector<gpu_figures> result;
    auto count = 0u;
    if (!is_usable_ || count_(&count) != nvml_success)
      return result;
    for (auto i = 0u; i < count; ++i) {
      nvml_device device = nullptr;
      nvml_memory memory;
      if (device_(i, &device) != nvml_success || memory_(device, &memory) != nvml_success)
        continue;
      // Slices of a GPU (MIG) have no utilization.
      nvml_utilization utilization;
      if (utilization_(device, &utilization) != nvml_success)
        utilization = {};
      result.push_back(
          {i, text(name_, device), text(uuid_, device), utilization.gpu / 100.0, memory.used, memory.total});
    }
    return result;
  }

 private:
  using text_function = nvml_result(nvml_device, char*, unsigned);

  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(handle_, name));
    is_complete_ = is_complete_ && function != nullptr;
  }

  static std::string text(text_function* function, nvml_device device) {
    std::array<char, 96> buffer{};
    return function(device, buffer.data(), buffer.size() - 1) == nvml_success ? buffer.data() : std::string{};
  }

  void* handle_;
  bool is_complete_ = true;
  bool is_usable_ = false;
  nvml_result (*init_)() = nullptr;
  nvml_result (*shutdown_)() = nullptr;
  nvml_result (*count_)(unsigned*) = nullptr;
  nvml_result (*device_)(unsigned, nvml_device*) = nullptr;
  text_function* name_ = nullptr;
  text_function* uuid_ = nullptr;
  nvml_result (*utilization_)(nvml_device, nvml_utilization*) = nullptr;
  nvml_result (*memory_)(nvml_device, nvml_memory*) = nullptr;
};

gpu_reader::gpu_reader(const char* name) : library_(std::make_unique<library>(name)) {}
gpu_reader::~gpu_reader() = default;

std::vector<gpu_figures> gpu_reader::read() {
  return library_->read();
}

void put_gpus(prometheus_text& out, const std::vector<gpu_figures>& gpus) {
  if (gpus.empty())
    return;
  out.gauge("troupe_gpu_info", "A GPU of this host; always 1.");
  for (const auto& each : gpus)
    out.sample(1, {{"gpu", fmt::to_string(each.index)}, {"name", each.name}, {"uuid", each.uuid}});
  out.gauge("troupe_gpu_utilization_ratio", "Part of the last sample period in which a kernel ran.");
  for (const auto& each : gpus)
    out.sample(each.utilization, {{"gpu", fmt::to_string(each.index)}});
  out.gauge("troupe_gpu_memory_used_bytes", "Memory in use, by any process.");
  for (const auto& each : gpus)
    out.sample(static_cast<double>(each.used_bytes), {{"gpu", fmt::to_string(each.index)}});
  out.gauge("troupe_gpu_memory_total_bytes", "Memory that it has.");
  for (const auto& each : gpus)
    out.sample(static_cast<double>(each.total_bytes), {{"gpu", fmt::to_string(each.index)}});
}

} // namespace troupe::runtime

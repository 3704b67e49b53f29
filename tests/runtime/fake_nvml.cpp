// The part of NVML that troupe asks, for two GPUs of which the second has no utilization, as a slice of a GPU has none.
#include <cstring>

extern "C" {

struct nvml_device_st {
  unsigned index;
};
struct utilization {
  unsigned gpu, memory;
};
struct memory {
  unsigned long long total, free, used;
};

static nvml_device_st devices[] = {{0}, {1}};

int nvmlInit_v2() {
  return 0;
}
int nvmlShutdown() {
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_device_st** device) {
  *device = &devices[index];
  return 0;
}
int nvmlDeviceGetName(nvml_device_st*, char* name, unsigned size) {
  std::strncpy(name, "NVIDIA \"fake\"", size);
  return 0;
}
int nvmlDeviceGetUUID(nvml_device_st* device, char* uuid, unsigned size) {
  std::strncpy(uuid, device->index == 0 ? "GPU-a" : "GPU-b", size);
  return 0;
}
int nvmlDeviceGetUtilizationRates(nvml_device_st* device, utilization* result) {
  constexpr auto not_supported = 3;
  *result = {37, 5};
  return device->index == 0 ? 0 : not_supported;
}
int nvmlDeviceGetMemoryInfo(nvml_device_st*, memory* result) {
  *result = {80'000, 60'000, 20'000};
  return 0;
}
}

#include "device/kernels.hpp"

#include <troupe/collectives/device.hpp>
#include <troupe/collectives/device_software.hpp>

#include <algorithm>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

namespace troupe::collectives {

namespace {

std::string text_of(cudaError_t code) {
  return fmt::format("{} ({})", cudaGetErrorString(code), cudaGetErrorName(code));
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// Clears an error that later calls would return again. A kernel's error stays.
void forget_last_error() noexcept {
  static_cast<void>(cudaGetLastError());
}

/// In nvidia-smi's format.
std::string text_of(const cudaUUID_t& uuid) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10)
      text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

expected<int> count_devices() {
  int count = 0;
  const auto code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess)
    return count;
  forget_last_error();
  if (code == cudaErrorNoDevice)
    return 0;
  if (code != cudaErrorInsufficientDriver)
    return fail(errc::device_error, fmt::format("cudaGetDeviceCount: {}", text_of(code)));
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return fail(errc::unsatisfiable,
                "this machine has no NVIDIA driver (libcuda.so.1 is not found), so there is no GPU "
                "to use: install the driver, or run without use_gpu");
  return fail(errc::unsatisfiable, fmt::format("the NVIDIA driver supports CUDA {} and is too old for this program "
                                               "({}): install a newer driver, or run without use_gpu",
                                               version_text(driver), device_support()));
}

expected<device_info> describe(int index) {
  cudaDeviceProp properties{};
  if (const auto code = cudaGetDeviceProperties(&properties, index); code != cudaSuccess) {
    forget_last_error();
    return fail(errc::device_error, fmt::format("GPU {}: cudaGetDeviceProperties: {}", index, text_of(code)));
  }
  return device_info{
      index, properties.name, text_of(properties.uuid), properties.totalGlobalMem, properties.major, properties.minor};
}

kernels::operation operation_of(reduce_op op) noexcept {
  switch (op) {
  case reduce_op::sum:
  case reduce_op::mean:
    return kernels::operation::add;
  case reduce_op::min:
    return kernels::operation::min;
  case reduce_op::max:
    return kernels::operation::max;
  case reduce_op::product:
    return kernels::operation::multiply;
  }
  return kernels::operation::add;
}

class cuda_device final : public device {
 public:
  explicit cuda_device(device_info info) : info_(std::move(info)) {}

  const device_info& info() const noexcept override { return info_; }

  expected<std::uint64_t> free_bytes() override {
    std::size_t free = 0;
    std::size_t total = 0;
    return run("cudaMemGetInfo", [&] { return cudaMemGetInfo(&free, &total); }).map([&] {
      return std::uint64_t{free};
    });
  }

  expected<void> make_current() override { return check("cudaSetDevice", cudaSetDevice(info_.index)); }

  expected<void> synchronize() override {
    return run("cudaDeviceSynchronize", [] { return cudaDeviceSynchronize(); });
  }

  expected<std::byte*> allocate(std::uint64_t size_bytes) override {
    void* data = nullptr;
    const auto code = try_run([&] { return cudaMalloc(&data, size_bytes); });
    if (code != cudaErrorMemoryAllocation)
      return check("cudaMalloc", code).map([&] { return static_cast<std::byte*>(data); });
    forget_last_error();
    const auto free = free_bytes();
    return fail(errc::unsatisfiable,
                fmt::format("{} is out of memory: {} bytes were asked for and {} of {} are free; use fewer workers on "
                            "this GPU, a smaller batch or more shards",
                            to_string(info_), size_bytes, free ? fmt::to_string(*free) : "an unknown number",
                            info_.total_bytes));
  }

  void release(std::byte* data) noexcept override {
    ignore([&] { return cudaFree(data); });
  }

  expected<std::byte*> allocate_pinned(std::uint64_t size_bytes) override {
    void* data = nullptr;
    const auto code = try_run([&] { return cudaHostAlloc(&data, size_bytes, cudaHostAllocPortable); });
    if (code != cudaErrorMemoryAllocation)
      return check("cudaHostAlloc", code).map([&] { return static_cast<std::byte*>(data); });
    forget_last_error();
    return fail(errc::unsatisfiable, fmt::format("{}: {} bytes of host memory cannot be pinned for copies: the host is "
                                                 "short of memory; use fewer workers on this host",
                                                 to_string(info_), size_bytes));
  }

  void release_pinned(std::byte* data) noexcept override {
    ignore([&] { return cudaFreeHost(data); });
  }

  expected<void> pin(const std::byte* data, std::uint64_t size_bytes, host_access access) override {
    const auto flags = access == host_access::read_only ? cudaHostRegisterPortable | cudaHostRegisterReadOnly
                                                        : cudaHostRegisterPortable;
    return run("cudaHostRegister", [&] { return cudaHostRegister(const_cast<std::byte*>(data), size_bytes, flags); });
  }

  void unpin(const std::byte* data) noexcept override {
    ignore([&] { return cudaHostUnregister(const_cast<std::byte*>(data)); });
  }

  expected<stream_handle> make_stream(stream_priority priority) override {
    cudaStream_t stream = nullptr;
    return run("cudaStreamCreateWithPriority",
               [&] {
                 int least = 0;
                 int greatest = 0;
                 if (const auto code = cudaDeviceGetStreamPriorityRange(&least, &greatest); code != cudaSuccess)
                   return code;
                 return cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                                     priority == stream_priority::high ? greatest : least);
               })
        .map([&] { return stream_handle{stream}; });
  }

  void destroy_stream(stream_handle stream) noexcept override {
    ignore([&] { return cudaStreamDestroy(as_stream(stream)); });
  }

  expected<event_handle> make_event() override {
    cudaEvent_t event = nullptr;
    return run("cudaEventCreateWithFlags",
               [&] { return cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync); })
        .map([&] { return event_handle{event}; });
  }

  void destroy_event(event_handle event) noexcept override {
    ignore([&] { return cudaEventDestroy(as_event(event)); });
  }

  expected<void> record(event_handle event, stream_handle stream) override {
    return run("cudaEventRecord", [&] { return cudaEventRecord(as_event(event), as_stream(stream)); });
  }

  expected<void> wait_for(stream_handle stream, event_handle event) override {
    return run("cudaStreamWaitEvent", [&] { return cudaStreamWaitEvent(as_stream(stream), as_event(event), 0); });
  }

  expected<bool> has_completed(event_handle event) override {
    const auto code = try_run([&] { return cudaEventQuery(as_event(event)); });
    if (code == cudaErrorNotReady) {
      forget_last_error();
      return false;
    }
    return check("cudaEventQuery", code).map([] { return true; });
  }

  expected<void> synchronize_event(event_handle event) override {
    return run("cudaEventSynchronize", [&] { return cudaEventSynchronize(as_event(event)); });
  }

  expected<void> synchronize_stream(stream_handle stream) override {
    // The runtime's own wait for a stream spins, unless the whole process is configured otherwise.
    TROUPE_TRY(auto event, make_event());
    auto done = record(event, stream);
    if (done)
      done = synchronize_event(event);
    destroy_event(event);
    return done;
  }

  expected<void> copy(std::byte* to, const std::byte* from, std::uint64_t size_bytes, stream_handle stream) override {
    if (size_bytes == 0)
      return {};
    return run("cudaMemcpyAsync",
               [&] { return cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDefault, as_stream(stream)); });
  }

  expected<void> clear(std::byte* data, std::uint64_t size_bytes, stream_handle stream) override {
    if (size_bytes == 0)
      return {};
    return run("cudaMemsetAsync", [&] { return cudaMemsetAsync(data, 0, size_bytes, as_stream(stream)); });
  }

  expected<void> widen(dtype type, std::byte* out, const std::byte* in, std::uint64_t elements,
                       stream_handle stream) override {
    if (sum_type(type) == type)
      return copy(out, in, elements * size_of(type), stream);
    return run("launch of the widening kernel",
               [&] { return static_cast<cudaError_t>(kernels::launch_widen(type, out, in, elements, stream)); });
  }

  expected<void> reduce(const device_reduction& what, stream_handle stream) override {
    kernels::tree_pass pass{};
    pass.type = what.type;
    pass.op = operation_of(what.op);
    pass.count = static_cast<std::uint32_t>(what.operands.size());
    pass.out = what.out;
    pass.elements = what.elements;
    pass.is_final = what.is_final;
    pass.divisor = what.divisor;
    if (what.operands.size() > std::size(pass.operands))
      return fail(errc::invalid_argument,
                  fmt::format("{}: a pass of the summation kernel takes 1, 2, 4 or 8 operands, not {}",
                              to_string(info_), what.operands.size()));
    std::ranges::copy(what.operands, pass.operands);
    return run("launch of the summation kernel",
               [&] { return static_cast<cudaError_t>(kernels::launch(pass, stream)); });
  }

 private:
  static cudaStream_t as_stream(stream_handle x) noexcept { return static_cast<cudaStream_t>(x); }
  static cudaEvent_t as_event(event_handle x) noexcept { return static_cast<cudaEvent_t>(x); }

  /// The runtime has a current device per thread, and any thread may call here.
  template <class F>
  cudaError_t try_run(F call) noexcept {
    if (const auto code = cudaSetDevice(info_.index); code != cudaSuccess)
      return code;
    return call();
  }

  template <class F>
  expected<void> run(const char* name, F call) {
    return check(name, try_run(call));
  }

  template <class F>
  void ignore(F call) noexcept {
    if (try_run(call) != cudaSuccess)
      forget_last_error();
  }

  expected<void> check(const char* name, cudaError_t code) {
    if (code == cudaSuccess)
      return {};
    forget_last_error();
    return fail(errc::device_error, fmt::format("{}: {}: {}", to_string(info_), name, text_of(code)));
  }

  const device_info info_;
};

} // namespace

std::string device_support() {
  return fmt::format("CUDA {}", version_text(CUDART_VERSION));
}

device_software find_device_software() {
  device_software result{{}, version_text(CUDART_VERSION)};
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver != 0)
    result.driver = version_text(driver);
  else
    forget_last_error();
  return result;
}

expected<std::vector<device_info>> find_devices() {
  TROUPE_TRY(auto count, count_devices());
  std::vector<device_info> result;
  for (int i = 0; i < count; ++i) {
    TROUPE_TRY(auto info, describe(i));
    result.push_back(std::move(info));
  }
  return result;
}

expected<std::shared_ptr<device>> open_device(int index) {
  TROUPE_TRY(auto count, count_devices());
  if (index < 0 || index >= count)
    return fail(errc::unsatisfiable, fmt::format("there is no GPU {}: this process sees {}; check nvidia-smi and "
                                                 "CUDA_VISIBLE_DEVICES, or run without use_gpu",
                                                 index, count));
  TROUPE_TRY(auto info, describe(index));
  auto result = std::make_shared<cuda_device>(std::move(info));
  // The first call that needs the device creates its context.
  TROUPE_TRY(result->free_bytes());
  return result;
}

} // namespace troupe::collectives

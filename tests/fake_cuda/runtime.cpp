#include "memory.hpp"
#include "stream.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <host_mapping.hpp>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <utility>

// See README.md.

namespace fake_cuda {

namespace {

constexpr int driver_version = 1000;

std::string_view variable(const char* name) {
  const auto* value = std::getenv(name);
  return value == nullptr ? std::string_view{} : std::string_view{value};
}

std::uint64_t number(std::string_view text, std::uint64_t otherwise) {
  std::uint64_t result = otherwise;
  std::from_chars(text.data(), text.data() + text.size(), result);
  return result;
}

/// The devices of this host, and those that are visible to this process.
class devices {
 public:
  devices() {
    const auto all = number(variable("TROUPE_FAKE_GPUS"), 1);
    const auto* shown = std::getenv("CUDA_VISIBLE_DEVICES");
    if (shown == nullptr) {
      for (std::uint64_t i = 0; i < all; ++i)
        visible_.push_back(static_cast<int>(i));
      return;
    }
    // Entries after an invalid one are ignored.
    for (std::string_view rest = shown; !rest.empty();) {
      const auto entry = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
      const auto device = named(entry, static_cast<int>(all));
      if (device < 0)
        break;
      visible_.push_back(device);
    }
  }

  [[nodiscard]] int count() const noexcept { return static_cast<int>(visible_.size()); }
  /// The device's number on this host.
  [[nodiscard]] int physical(int device) const { return visible_[static_cast<std::size_t>(device)]; }

  static cudaUUID_t uuid(int physical) noexcept {
    cudaUUID_t result{};
    result.bytes[3] = static_cast<char>(physical + 1);
    return result;
  }

 private:
  static int named(std::string_view entry, int all) {
    for (int i = 0; i < all; ++i)
      if (entry == std::to_string(i) || entry == text_of(uuid(i)))
        return i;
    return -1;
  }

  static std::string text_of(const cudaUUID_t& uuid) {
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

  std::vector<int> visible_;
};

/// The fault requested by TROUPE_FAKE_GPU_FAULT, for example "hang:FILE". The process that finds FILE removes it and
/// has the fault in one of its kernels, after the number in TROUPE_FAKE_GPU_FAULT_AFTER.
class fault {
 public:
  /// Called in each kernel.
  void look(int physical_device) {
    if (file_.empty() || kernels_++ < after_ || ::unlink(file_.c_str()) != 0)
      return;
    if (kind_ == "hang")
      for (;;)
        ::pause();
    if (kind_ == "break")
      static_cast<void>(::close(::open(mark_of(physical_device).c_str(), O_CREAT | O_CLOEXEC, 0600)));
    loss::set(cudaErrorIllegalAddress);
  }

  /// In a process that has ended.
  [[nodiscard]] bool has_broken(int physical_device) const {
    return kind_ == "break" && ::access(mark_of(physical_device).c_str(), F_OK) == 0;
  }

 private:
  [[nodiscard]] std::string mark_of(int physical_device) const { return file_ + "." + std::to_string(physical_device); }

  const std::string_view value_ = variable("TROUPE_FAKE_GPU_FAULT");
  const std::string_view kind_ = value_.substr(0, value_.find(':'));
  const std::string file_{value_.substr(std::min(value_.size(), kind_.size() + 1))};
  const std::uint64_t after_ = number(variable("TROUPE_FAKE_GPU_FAULT_AFTER"), 0);
  std::atomic<std::uint64_t> kernels_ = 0;
};

/// The runtime of this process. Never destroyed, because threads of streams outlive `main`.
struct runtime {
  const pid_t pid = ::getpid();
  const devices seen;
  const std::size_t total_bytes = number(variable("TROUPE_FAKE_GPU_BYTES"), std::size_t{4} << 30);
  const bool pins_read_only = variable("TROUPE_FAKE_PINS_READ_ONLY") == "1";
  const std::uint64_t seed = number(variable("TROUPE_FAKE_CUDA_SEED"), static_cast<std::uint64_t>(pid));
  fault trouble;
  const std::vector<bool> broken = find_broken();

  memory_table memory;
  std::mutex mutex;
  std::set<std::shared_ptr<stream>> streams;
  std::uint64_t made_streams = 0;

 private:
  [[nodiscard]] std::vector<bool> find_broken() const {
    std::vector<bool> result(static_cast<std::size_t>(seen.count()));
    for (int i = 0; i < seen.count(); ++i)
      result[static_cast<std::size_t>(i)] = trouble.has_broken(seen.physical(i));
    return result;
  }
};

runtime& here() {
  static auto& made = *new runtime;
  return made;
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t note(cudaError_t code) {
  if (code != cudaSuccess)
    last_error = code;
  return code;
}

/// The error with which every call fails in the present state. A process forked from one that has used CUDA cannot use
/// it.
cudaError_t state() {
  if (here().pid != ::getpid())
    return cudaErrorInitializationError;
  if (here().seen.count() == 0)
    return cudaErrorNoDevice;
  return loss::code();
}

/// Runs a call unless the devices are in an error state.
template <class F>
cudaError_t call(F f) {
  if (const auto code = state(); code != cudaSuccess)
    return note(code);
  return note(f());
}

using stream_pointer = std::shared_ptr<stream>;
using event_pointer = std::shared_ptr<event>;

stream* as_stream(cudaStream_t x) {
  return reinterpret_cast<stream*>(x);
}
event_pointer as_event(cudaEvent_t x) {
  return *reinterpret_cast<event_pointer*>(x);
}

/// Enqueues work that a lost device does not do.
cudaError_t put(stream* on, std::function<void()> work) {
  if (on == nullptr)
    return cudaErrorInvalidResourceHandle;
  on->add([work = std::move(work)] {
    if (loss::code() == cudaSuccess)
      work();
  });
  return cudaSuccess;
}

/// Waits for all streams of the current device.
void wait_for_device() {
  std::vector<stream_pointer> all;
  {
    const std::lock_guard lock{here().mutex};
    all.assign(here().streams.begin(), here().streams.end());
  }
  for (const auto& x : all)
    if (x->device() == current_device)
      x->wait_until_idle();
}

cudaError_t copy(void* to, const void* from, std::size_t size_bytes, stream* on) {
  auto target = memory_kind::pageable;
  auto source = memory_kind::pageable;
  if (!here().memory.find(to, size_bytes, target) || !here().memory.find(from, size_bytes, source))
    return cudaErrorInvalidValue;
  if (source == memory_kind::pageable) {
    // Pageable memory is read before the call returns.
    auto staged = std::make_shared<std::vector<std::byte>>(size_bytes);
    std::memcpy(staged->data(), from, size_bytes);
    return put(on, [to, staged, size_bytes] { std::memcpy(to, staged->data(), size_bytes); });
  }
  const auto code = put(on, [to, from, size_bytes] { std::memcpy(to, from, size_bytes); });
  if (code == cudaSuccess && target == memory_kind::pageable)
    on->wait_until_idle();
  return code;
}

} // namespace

memory_table& known_memory() {
  return here().memory;
}

cudaError_t launch(dim3 blocks, dim3 threads, cudaStream_t handle, std::function<void()> work) {
  return call([&] {
    auto* on = as_stream(handle);
    if (blocks.x == 0 || threads.x == 0 || threads.x > 1024)
      return cudaErrorInvalidValue;
    if (on == nullptr || on->device() != current_device)
      return cudaErrorInvalidResourceHandle;
    const auto physical = here().seen.physical(current_device);
    return put(on, [physical, work = std::move(work)] {
      here().trouble.look(physical);
      work();
    });
  });
}

} // namespace fake_cuda

using namespace fake_cuda;

extern "C" {

const char* cudaGetErrorName(cudaError_t code) {
  switch (code) {
  case cudaSuccess:
    return "cudaSuccess";
  case cudaErrorInvalidValue:
    return "cudaErrorInvalidValue";
  case cudaErrorMemoryAllocation:
    return "cudaErrorMemoryAllocation";
  case cudaErrorInitializationError:
    return "cudaErrorInitializationError";
  case cudaErrorInsufficientDriver:
    return "cudaErrorInsufficientDriver";
  case cudaErrorInvalidDeviceFunction:
    return "cudaErrorInvalidDeviceFunction";
  case cudaErrorNoDevice:
    return "cudaErrorNoDevice";
  case cudaErrorDevicesUnavailable:
    return "cudaErrorDevicesUnavailable";
  case cudaErrorInvalidDevice:
    return "cudaErrorInvalidDevice";
  case cudaErrorInvalidResourceHandle:
    return "cudaErrorInvalidResourceHandle";
  case cudaErrorNotReady:
    return "cudaErrorNotReady";
  case cudaErrorIllegalAddress:
    return "cudaErrorIllegalAddress";
  case cudaErrorHostMemoryAlreadyRegistered:
    return "cudaErrorHostMemoryAlreadyRegistered";
  case cudaErrorHostMemoryNotRegistered:
    return "cudaErrorHostMemoryNotRegistered";
  case cudaErrorNotSupported:
    return "cudaErrorNotSupported";
  }
  return "cudaErrorUnknown";
}

const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "fake";
}

cudaError_t cudaGetLastError() {
  // The error of a lost device is permanent.
  const auto code = std::exchange(last_error, cudaSuccess);
  return loss::code() != cudaSuccess ? loss::code() : code;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (const auto code = state(); code != cudaSuccess)
    return note(code);
  *count = here().seen.count();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call([&] {
    if (device < 0 || device >= here().seen.count())
      return cudaErrorInvalidDevice;
    *properties = {};
    std::strcpy(properties->name, "fake GPU");
    properties->uuid = devices::uuid(here().seen.physical(device));
    properties->totalGlobalMem = here().total_bytes;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return call([&] {
    *device = current_device;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return call([&] {
    if (device < 0 || device >= here().seen.count())
      return cudaErrorInvalidDevice;
    if (here().broken[static_cast<std::size_t>(device)])
      return cudaErrorDevicesUnavailable;
    current_device = device;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call([] {
    wait_for_device();
    return loss::code();
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call([&] {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  return call([&] {
    *total_bytes = here().total_bytes;
    *free_bytes = here().total_bytes - here().memory.allocated_bytes(current_device);
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** data, std::size_t size_bytes) {
  return call([&] {
    *data = nullptr;
    if (size_bytes != 0)
      *data = here().memory.allocate_device(current_device, size_bytes, here().total_bytes);
    return size_bytes != 0 && *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t cudaFree(void* data) {
  return call([&] {
    if (data == nullptr)
      return cudaSuccess;
    wait_for_device();
    return here().memory.release(data, memory_kind::device) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaHostAlloc(void** data, std::size_t size_bytes, unsigned) {
  return call([&] {
    *data = nullptr;
    if (size_bytes != 0)
      *data = here().memory.allocate_pinned(size_bytes);
    return size_bytes != 0 && *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* data) {
  return call([&] {
    if (data == nullptr)
      return cudaSuccess;
    wait_for_device();
    return here().memory.release(data, memory_kind::pinned) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaHostRegister(void* data, std::size_t size_bytes, unsigned flags) {
  return call([&] {
    if ((flags & cudaHostRegisterReadOnly) != 0 && !here().pins_read_only)
      return cudaErrorNotSupported;
    if ((flags & cudaHostRegisterReadOnly) == 0 && !troupe::testing::may_write(data, size_bytes))
      return cudaErrorInvalidValue;
    return here().memory.add_registered(data, size_bytes);
  });
}

cudaError_t cudaHostUnregister(void* data) {
  return call([&] { return here().memory.remove_registered(data); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned, int) {
  return call([&] {
    const std::lock_guard lock{here().mutex};
    const auto seed = here().seed == 0 ? 0 : static_cast<std::uint32_t>(here().seed * 977 + ++here().made_streams);
    auto made = stream::start(current_device, seed);
    *handle = reinterpret_cast<cudaStream_t>(made.get());
    here().streams.insert(std::move(made));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return call([&] {
    const std::lock_guard lock{here().mutex};
    auto found = std::ranges::find(here().streams, as_stream(handle), &stream_pointer::get);
    if (found == here().streams.end())
      return cudaErrorInvalidResourceHandle;
    (*found)->end();
    here().streams.erase(found);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  return call([&] {
    auto x = as_event(event);
    return put(as_stream(handle), [x, record = x->last()] { x->wait(record); });
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* argument) {
  return call([&] { return put(as_stream(handle), [function, argument] { function(argument); }); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size_bytes, cudaMemcpyKind, cudaStream_t handle) {
  return call([&] { return copy(to, from, size_bytes, as_stream(handle)); });
}

cudaError_t cudaMemsetAsync(void* data, int value, std::size_t size_bytes, cudaStream_t handle) {
  return call([&] {
    auto kind = memory_kind::pageable;
    if (!here().memory.find(data, size_bytes, kind) || kind != memory_kind::device)
      return cudaErrorInvalidValue;
    return put(as_stream(handle), [data, value, size_bytes] { std::memset(data, value, size_bytes); });
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned) {
  return call([&] {
    *handle = reinterpret_cast<cudaEvent_t>(new event_pointer{std::make_shared<event>(current_device)});
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return call([&] {
    delete reinterpret_cast<event_pointer*>(handle);
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  return call([&] {
    auto x = as_event(handle);
    auto* on = as_stream(stream);
    if (on == nullptr || on->device() != x->device())
      return cudaErrorInvalidResourceHandle;
    // Also on a lost device, so that waiting threads return.
    on->add([x, record = x->add()] { x->complete(record); });
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return call([&] {
    auto x = as_event(handle);
    return x->is_complete(x->last()) ? loss::code() : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return call([&] {
    auto x = as_event(handle);
    x->wait(x->last());
    return loss::code();
  });
}

} // extern "C"

#pragma once

#include <troupe/collectives/reduction.hpp>
#include <troupe/dtype.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe::collectives {

/// A GPU as this process sees it.
struct device_info {
  /// The runtime's number for it: an index into what CUDA_VISIBLE_DEVICES shows.
  int index = 0;
  /// "NVIDIA H100 80GB HBM3".
  std::string name;
  /// Equal for two processes on one host exactly if they use the same GPU: the UUID as nvidia-smi prints it.
  std::string uuid;
  std::uint64_t total_bytes = 0;
  /// Compute capability, e.g. 9 and 0.
  int major = 0;
  int minor = 0;

  bool operator==(const device_info&) const = default;
};

/// "GPU 0 (NVIDIA H100 80GB HBM3, GPU-5d5ba0d6)".
[[nodiscard]] std::string to_string(const device_info& info);

/// Of a device: the driver's and the runtime's own. For CUDA a `cudaStream_t` and a `cudaEvent_t`.
using stream_handle = void*;
using event_handle = void*;

/// One pass of a kernel over elements in device memory: the balanced tree, neighbours first, over 1, 2, 4 or 8
/// operands, with the bits of `combine_balanced`, then what is done with a sum. Pointers are aligned to 16 bytes. `out`
/// may be any operand of the same element size, else nothing overlaps.
struct device_reduction {
  /// Of the bucket; operands and sums are of its `sum_type`.
  dtype type = dtype::f32;
  reduce_op op = reduce_op::sum;
  std::uint64_t elements = 0;
  std::span<const std::byte* const> operands;
  std::byte* out = nullptr;
  /// Whether `out` is a finished result: divided, and rounded to `type`. Else it is a sum, of `sum_type`.
  bool is_final = false;
  /// Of a finished result. Not 0.
  std::uint64_t divisor = 1;
};

/// A GPU, or what stands for one in a test. Calls may come from any thread; work on one stream is done in the order of
/// the calls, beside that of other streams and of the host. The handles are for the RAII classes below, and for calls
/// of CUDA itself.
///
/// Errors: `errc::device_error` names device, call and the driver's own words; the caller adds rank and step. Memory
/// that is not there is `errc::unsatisfiable`, with what was asked for and what was free. A fault of an earlier kernel
/// may show in any later call, and is final for the process.
class device {
 public:
  device() = default;
  device(const device&) = delete;
  device& operator=(const device&) = delete;
  virtual ~device() = default;

  [[nodiscard]] virtual const device_info& info() const noexcept = 0;
  [[nodiscard]] virtual expected<std::uint64_t> free_bytes() = 0;

  /// Makes this the device of the calling thread, for calls of CUDA that are not made through this class.
  [[nodiscard]] virtual expected<void> make_current() = 0;

  /// Waits for all that was ever begun.
  [[nodiscard]] virtual expected<void> synchronize() = 0;

  // -- memory: see device_memory, pinned_memory, pinned_registration

  [[nodiscard]] virtual expected<std::byte*> allocate(std::uint64_t size_bytes) = 0;
  virtual void release(std::byte* data) noexcept = 0;
  [[nodiscard]] virtual expected<std::byte*> allocate_pinned(std::uint64_t size_bytes) = 0;
  virtual void release_pinned(std::byte* data) noexcept = 0;
  /// `access` of memory that this process may not write is `read_only`.
  enum class host_access : std::uint8_t { read_write, read_only };
  [[nodiscard]] virtual expected<void> pin(const std::byte* data, std::uint64_t size_bytes, host_access access) = 0;
  virtual void unpin(const std::byte* data) noexcept = 0;

  // -- streams and events: see device_stream, device_event

  enum class stream_priority : std::uint8_t { normal, high };
  [[nodiscard]] virtual expected<stream_handle> make_stream(stream_priority priority) = 0;
  virtual void destroy_stream(stream_handle stream) noexcept = 0;
  [[nodiscard]] virtual expected<event_handle> make_event() = 0;
  virtual void destroy_event(event_handle event) noexcept = 0;
  [[nodiscard]] virtual expected<void> record(event_handle event, stream_handle stream) = 0;
  /// What is put on `stream` from now on begins after `event`, as it was last recorded.
  [[nodiscard]] virtual expected<void> wait_for(stream_handle stream, event_handle event) = 0;
  /// Whether all has been done that stood on the stream when the event was last recorded; true if it never was.
  [[nodiscard]] virtual expected<bool> has_completed(event_handle event) = 0;
  /// Block until then, without using the processor.
  [[nodiscard]] virtual expected<void> synchronize_event(event_handle event) = 0;
  [[nodiscard]] virtual expected<void> synchronize_stream(stream_handle stream) = 0;

  // -- work on a stream

  /// Between any two places of host and device memory. Asynchronous where host memory is pinned; what is copied stays
  /// as it is until the stream has come there.
  [[nodiscard]] virtual expected<void> copy(std::byte* to, const std::byte* from, std::uint64_t size_bytes,
                                            stream_handle stream) = 0;
  [[nodiscard]] virtual expected<void> clear(std::byte* data, std::uint64_t size_bytes, stream_handle stream) = 0;
  /// From elements of a 16-bit `type` to f32; a copy for other types. Pointers are aligned to 16 bytes.
  [[nodiscard]] virtual expected<void> widen(dtype type, std::byte* out, const std::byte* in, std::uint64_t elements,
                                             stream_handle stream) = 0;
  [[nodiscard]] virtual expected<void> reduce(const device_reduction& what, stream_handle stream) = 0;
};

/// "CUDA 13.0", or "built without CUDA".
[[nodiscard]] std::string device_support();

/// The GPUs that this process sees, in the runtime's order; none is no error. Fails with `errc::unsatisfiable` in a
/// build without CUDA and where there is no driver, or one too old; the message says which.
[[nodiscard]] expected<std::vector<device_info>> find_devices();

/// Opens GPU `index`; takes some 100 ms the first time. Fails as `find_devices` does, and with `errc::unsatisfiable`
/// for an index beyond those there are.
[[nodiscard]] expected<std::shared_ptr<device>> open_device(int index);

/// Bytes of device memory on a 256-byte boundary, as they come: not zeroed. Must not be freed while a stream may still
/// use them.
class device_memory {
 public:
  using release_function = std::function<void(std::byte*)>;

  device_memory() = default;
  [[nodiscard]] static expected<device_memory> make(std::shared_ptr<device> where, std::uint64_t size_bytes);
  /// Takes over memory that has its own way to be given back.
  device_memory(std::byte* data, std::uint64_t size_bytes, release_function release)
      : size_bytes_(size_bytes), data_(data, std::move(release)) {}

  /// Addresses of the device: only its kernels and copies may follow them.
  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data(), size_bytes_}; }

 private:
  std::uint64_t size_bytes_ = 0;
  std::unique_ptr<std::byte, release_function> data_{nullptr, [](std::byte*) {}};
};

/// Host memory that the device copies from and to by itself, on a page boundary. Not zeroed.
class pinned_memory {
 public:
  pinned_memory() = default;
  [[nodiscard]] static expected<pinned_memory> make(std::shared_ptr<device> where, std::uint64_t size_bytes);

  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data(), size_bytes_}; }

 private:
  std::uint64_t size_bytes_ = 0;
  std::unique_ptr<std::byte, std::function<void(std::byte*)>> data_{nullptr, [](std::byte*) {}};
};

/// Pins host memory that somebody else has, such as shared memory, for as long as this lives. The memory outlives it.
class pinned_registration {
 public:
  pinned_registration() = default;
  [[nodiscard]] static expected<pinned_registration> make(std::shared_ptr<device> where,
                                                          std::span<const std::byte> memory,
                                                          device::host_access access = device::host_access::read_write);

 private:
  std::unique_ptr<const std::byte, std::function<void(const std::byte*)>> memory_{nullptr, [](const std::byte*) {}};
};

/// A queue of work of its own, which waits for no other. The destructor does not wait: what is under way goes on.
class device_stream {
 public:
  device_stream() = default;
  [[nodiscard]] static expected<device_stream> make(std::shared_ptr<device> where,
                                                    device::stream_priority priority = device::stream_priority::normal);

  [[nodiscard]] stream_handle handle() const noexcept { return handle_.get(); }
  [[nodiscard]] device& where() const noexcept { return *where_; }

  [[nodiscard]] expected<void> copy(std::byte* to, const std::byte* from, std::uint64_t size_bytes) {
    return where_->copy(to, from, size_bytes, handle());
  }
  [[nodiscard]] expected<void> clear(std::byte* data, std::uint64_t size_bytes) {
    return where_->clear(data, size_bytes, handle());
  }
  [[nodiscard]] expected<void> synchronize() { return where_->synchronize_stream(handle()); }

 private:
  std::shared_ptr<device> where_;
  std::unique_ptr<void, std::function<void(void*)>> handle_{nullptr, [](void*) {}};
};

/// A place on a stream, to be waited for by the host or by other streams. Made without timing.
class device_event {
 public:
  device_event() = default;
  [[nodiscard]] static expected<device_event> make(std::shared_ptr<device> where);

  [[nodiscard]] event_handle handle() const noexcept { return handle_.get(); }

  [[nodiscard]] expected<void> record(const device_stream& stream) { return where_->record(handle(), stream.handle()); }
  [[nodiscard]] expected<void> record(stream_handle stream) { return where_->record(handle(), stream); }
  /// Has `stream` wait.
  [[nodiscard]] expected<void> hold(const device_stream& stream) const {
    return where_->wait_for(stream.handle(), handle());
  }
  [[nodiscard]] expected<bool> has_completed() const { return where_->has_completed(handle()); }
  [[nodiscard]] expected<void> synchronize() const { return where_->synchronize_event(handle()); }

 private:
  std::shared_ptr<device> where_;
  std::unique_ptr<void, std::function<void(void*)>> handle_{nullptr, [](void*) {}};
};

} // namespace troupe::collectives

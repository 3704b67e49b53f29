#pragma once

#include <troupe/collectives/reduction.hpp>
#include <troupe/device_span.hpp>
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
  /// The CUDA runtime's number: an index into what CUDA_VISIBLE_DEVICES shows.
  int index = 0;
  /// "NVIDIA H100 80GB HBM3".
  std::string name;
  /// The UUID as nvidia-smi prints it. Two processes on one host use the same GPU if and only if it is equal.
  std::string uuid;
  std::uint64_t total_bytes = 0;
  /// Compute capability, e.g. 9 and 0.
  int major = 0;
  int minor = 0;

  bool operator==(const device_info&) const = default;
};

/// "GPU 0 (NVIDIA H100 80GB HBM3, GPU-5d5ba0d6)".
[[nodiscard]] std::string to_string(const device_info& info);

/// The driver's own handles: for CUDA a `cudaStream_t` and a `cudaEvent_t`.
using stream_handle = void*;
using event_handle = void*;

/// One pass of a kernel over elements in device memory: a balanced tree over 1, 2, 4 or 8 operands, neighbours first,
/// with the bits of `combine_balanced`, followed by the division and rounding of a final sum. Pointers are aligned to
/// 16 bytes. `out` may be any operand of the same element size; otherwise nothing overlaps.
struct device_reduction {
  /// The bucket's type. Operands and sums have its `sum_type`.
  dtype type = dtype::f32;
  reduce_op op = reduce_op::sum;
  std::uint64_t elements = 0;
  std::span<const std::byte* const> operands;
  std::byte* out = nullptr;
  /// Whether `out` is a final result: divided and rounded to `type`. Otherwise it is a sum of type `sum_type`.
  bool is_final = false;
  /// Applied to a final result. Not 0.
  std::uint64_t divisor = 1;
};

/// A GPU, or a test's fake of one. Calls may come from any thread. Work on one stream runs in the order of the calls,
/// concurrently with other streams and the host. The handles are for the RAII classes below and for direct calls of
/// CUDA.
///
/// Errors: `errc::device_error` carries the device, the call and the driver's text; the caller adds rank and step. Out
/// of memory is `errc::unsatisfiable` with the requested and the free bytes. A fault of an earlier kernel may surface
/// in any later call and is final for the process.
class device {
 public:
  device() = default;
  device(const device&) = delete;
  device& operator=(const device&) = delete;
  virtual ~device() = default;

  [[nodiscard]] virtual const device_info& info() const noexcept = 0;
  [[nodiscard]] virtual expected<std::uint64_t> free_bytes() = 0;

  /// Makes this the calling thread's device, for CUDA calls that do not go through this class.
  [[nodiscard]] virtual expected<void> make_current() = 0;

  /// Waits for all work submitted so far.
  [[nodiscard]] virtual expected<void> synchronize() = 0;

  // -- memory: see device_memory, pinned_memory, pinned_registration

  [[nodiscard]] virtual expected<std::byte*> allocate(std::uint64_t size_bytes) = 0;
  virtual void release(std::byte* data) noexcept = 0;
  [[nodiscard]] virtual expected<std::byte*> allocate_pinned(std::uint64_t size_bytes) = 0;
  virtual void release_pinned(std::byte* data) noexcept = 0;
  /// Memory that this process cannot write needs `read_only`.
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
  /// Work submitted to `stream` from now on starts after `event` as last recorded.
  [[nodiscard]] virtual expected<void> wait_for(stream_handle stream, event_handle event) = 0;
  /// Whether all work on the stream before the last recording of the event is done; true if it was never recorded.
  [[nodiscard]] virtual expected<bool> has_completed(event_handle event) = 0;
  /// Block until then without spinning.
  [[nodiscard]] virtual expected<void> synchronize_event(event_handle event) = 0;
  [[nodiscard]] virtual expected<void> synchronize_stream(stream_handle stream) = 0;

  // -- work on a stream

  /// Copies between any two places in host and device memory. Asynchronous if the host memory is pinned; the source
  /// must not change until the stream has executed the copy.
  [[nodiscard]] virtual expected<void> copy(std::byte* to, const std::byte* from, std::uint64_t size_bytes,
                                            stream_handle stream) = 0;
  [[nodiscard]] virtual expected<void> clear(std::byte* data, std::uint64_t size_bytes, stream_handle stream) = 0;
  /// Converts elements of a 16-bit `type` to f32; copies other types. Pointers are aligned to 16 bytes.
  [[nodiscard]] virtual expected<void> widen(dtype type, std::byte* out, const std::byte* in, std::uint64_t elements,
                                             stream_handle stream) = 0;
  [[nodiscard]] virtual expected<void> reduce(const device_reduction& what, stream_handle stream) = 0;
};

/// "CUDA 13.0", or "built without CUDA".
[[nodiscard]] std::string device_support();

/// The GPUs that this process sees, in the runtime's order; possibly none. Fails with `errc::unsatisfiable` in a build
/// without CUDA, without a driver, or with a driver that is too old; the message says which.
[[nodiscard]] expected<std::vector<device_info>> find_devices();

/// Opens GPU `index`; the first call takes about 100 ms. Fails as `find_devices` does, and with `errc::unsatisfiable`
/// if there is no such GPU.
[[nodiscard]] expected<std::shared_ptr<device>> open_device(int index);

/// Uninitialised device memory on a 256-byte boundary. Do not free it while a stream may still use it.
class device_memory {
 public:
  using release_function = std::function<void(std::byte*)>;

  device_memory() = default;
  [[nodiscard]] static expected<device_memory> make(std::shared_ptr<device> where, std::uint64_t size_bytes);
  /// Takes ownership of memory that `release` frees.
  device_memory(std::byte* data, std::uint64_t size_bytes, release_function release)
      : size_bytes_(size_bytes), data_(data, std::move(release)) {}

  /// For a kernel call or a copy. Not to be dereferenced here.
  [[nodiscard]] std::byte* address() const noexcept { return data_.get(); }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  [[nodiscard]] device_span<std::byte> bytes() const noexcept { return {address(), size_bytes_}; }

 private:
  std::uint64_t size_bytes_ = 0;
  std::unique_ptr<std::byte, release_function> data_{nullptr, [](std::byte*) {}};
};

/// Page-aligned host memory that the device copies from and to directly. Not zeroed.
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

/// Pins host memory with another owner, such as shared memory, during its own lifetime. The memory outlives it.
class pinned_registration {
 public:
  pinned_registration() = default;
  [[nodiscard]] static expected<pinned_registration> make(std::shared_ptr<device> where,
                                                          std::span<const std::byte> memory,
                                                          device::host_access access = device::host_access::read_write);

 private:
  std::unique_ptr<const std::byte, std::function<void(const std::byte*)>> memory_{nullptr, [](const std::byte*) {}};
};

/// An independent queue of work. The destructor does not wait: submitted work continues.
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

/// A point on a stream that the host or other streams can wait for. Created without timing.
class device_event {
 public:
  device_event() = default;
  [[nodiscard]] static expected<device_event> make(std::shared_ptr<device> where);

  [[nodiscard]] event_handle handle() const noexcept { return handle_.get(); }

  [[nodiscard]] expected<void> record(const device_stream& stream) { return where_->record(handle(), stream.handle()); }
  [[nodiscard]] expected<void> record(stream_handle stream) { return where_->record(handle(), stream); }
  /// Makes `stream` wait for this event.
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

#pragma once

#include "address_range.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace fake_cuda {

/// TROUPE_FAKE_CUDA_SYNCHRONOUS: calls return once their work is done, and the host may touch device memory.
[[nodiscard]] bool is_synchronous() noexcept;

/// Who can reach memory. `pageable` memory is unknown to the runtime.
enum class memory_kind { pageable, pinned, registered, device };

/// The memory of this process that devices know. If the processor has protection keys, device memory is inaccessible to
/// all threads except those of streams: a program that bypasses the runtime gets SIGSEGV, and a system call EFAULT, as
/// with a GPU. New memory is filled with nonzero bytes, so that stale or uninitialised use is found.
class memory_table {
 public:
  /// Null if a device of `total_bytes` has not enough memory left.
  [[nodiscard]] void* allocate_device(int device, std::size_t size_bytes, std::size_t total_bytes);
  [[nodiscard]] void* allocate_pinned(std::size_t size_bytes);
  [[nodiscard]] bool release(void* data, memory_kind kind);

  [[nodiscard]] cudaError_t add_registered(void* data, std::size_t size_bytes);
  [[nodiscard]] cudaError_t remove_registered(void* data);

  /// The kind of all `size_bytes`. False if they span several kinds or exceed an allocation.
  [[nodiscard]] bool find(const void* data, std::size_t size_bytes, memory_kind& kind);
  /// The allocation or registered range that contains an address.
  [[nodiscard]] std::optional<address_range> around(std::uintptr_t at);
  [[nodiscard]] std::size_t allocated_bytes(int device);

 private:
  struct region {
    std::size_t size_bytes = 0;
    memory_kind kind = memory_kind::pageable;
    int device = -1;
  };
  using table = std::map<std::uintptr_t, region>;

  [[nodiscard]] void* add(std::size_t size_bytes, memory_kind kind, int device);
  [[nodiscard]] bool overlaps(std::uintptr_t first, std::size_t size_bytes) const;

  std::mutex mutex_;
  table regions_;
  std::map<int, std::size_t> allocated_;
};

/// Allows the calling thread, which belongs to a device, to access device memory.
void open_device_memory() noexcept;

/// The table of this process.
memory_table& known_memory();

} // namespace fake_cuda

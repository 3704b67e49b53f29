#pragma once

#include "address_range.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace fake_cuda {

/// Who can reach memory. Nobody told the runtime of memory that is `pageable`.
enum class memory_kind { pageable, pinned, registered, device };

/// The memory of this process that devices know of. Where the processor has protection keys, the memory of a device is
/// closed to all threads but those of streams: a program that touches it past the runtime gets SIGSEGV, and a system
/// call EFAULT, as with a GPU. It comes filled with what is no zero, and never returns to the same use unnoticed.
class memory_table {
 public:
  /// Null when a device of `total_bytes` has no room.
  [[nodiscard]] void* allocate_device(int device, std::size_t size_bytes, std::size_t total_bytes);
  [[nodiscard]] void* allocate_pinned(std::size_t size_bytes);
  [[nodiscard]] bool release(void* data, memory_kind kind);

  [[nodiscard]] cudaError_t add_registered(void* data, std::size_t size_bytes);
  [[nodiscard]] cudaError_t remove_registered(void* data);

  /// Of all `size_bytes`; false when they lie partly in one kind and partly in another, or go beyond an allocation.
  [[nodiscard]] bool find(const void* data, std::size_t size_bytes, memory_kind& kind);
  /// What was allocated or registered around an address.
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

/// For the calling thread, which is a device's.
void open_device_memory() noexcept;

/// The table of this process.
memory_table& known_memory();

} // namespace fake_cuda

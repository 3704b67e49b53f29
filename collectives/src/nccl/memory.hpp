#pragma once

#include "nccl/library.hpp"

#include <troupe/collectives/device.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace troupe::collectives {

/// The memory that NCCL has allocated on one device, and its registrations with the current generation's communicator.
/// Registrations end with the communicator, the memory with the process. From any thread.
class nccl_memory : public std::enable_shared_from_this<nccl_memory> {
 public:
  /// The instance for this library and device.
  [[nodiscard]] static std::shared_ptr<nccl_memory> of(std::shared_ptr<const nccl::library> library,
                                                       std::shared_ptr<device> where);

  nccl_memory(std::shared_ptr<const nccl::library> library, std::shared_ptr<device> where)
      : library_(std::move(library)), where_(std::move(where)) {}

  [[nodiscard]] expected<device_memory> allocate(std::uint64_t size_bytes);

  /// Registers the block that contains `data` with `group`, the one communicator in use, unless it is registered
  /// already. Ignores other memory.
  [[nodiscard]] nccl::result use(nccl::comm group, const std::byte* data);

  /// Call before the communicator is destroyed. After an abort its registrations are already gone: `is_alive` is false.
  void leave(nccl::comm group, bool is_alive) noexcept;

 private:
  struct block {
    std::uint64_t size_bytes = 0;
    nccl::comm group = nullptr;
    void* handle = nullptr;
  };

  void release(std::byte* data) noexcept;

  const std::shared_ptr<const nccl::library> library_;
  const std::shared_ptr<device> where_;
  std::mutex mutex_;
  std::map<const std::byte*, block> blocks_;
};

} // namespace troupe::collectives

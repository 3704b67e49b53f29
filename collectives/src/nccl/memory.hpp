#pragma once

#include "nccl/library.hpp"

#include <troupe/collectives/device.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace troupe::collectives {

/// The memory of one device that NCCL has allocated, for the life of the process, and what of it is registered with the
/// communicator of the current generation: registrations end with it, the memory does not. From any thread.
class nccl_memory : public std::enable_shared_from_this<nccl_memory> {
 public:
  /// The one for this library and device.
  [[nodiscard]] static std::shared_ptr<nccl_memory> of(std::shared_ptr<const nccl::library> library,
                                                       std::shared_ptr<device> where);

  nccl_memory(std::shared_ptr<const nccl::library> library, std::shared_ptr<device> where)
      : library_(std::move(library)), where_(std::move(where)) {}

  [[nodiscard]] expected<device_memory> allocate(std::uint64_t size_bytes);

  /// Registers the block in which `data` lies with `group`, if it is not registered yet; nothing for other memory.
  /// `group` is the one communicator that is in use.
  [[nodiscard]] nccl::result use(nccl::comm group, const std::byte* data);

  /// Before the communicator is destroyed. After an abort the registrations are gone with it: `is_alive` is false.
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

#include "nccl/memory.hpp"

#include <utility>

namespace troupe::collectives {

std::shared_ptr<nccl_memory> nccl_memory::of(std::shared_ptr<const nccl::library> library,
                                             std::shared_ptr<device> where) {
  // Its blocks keep it alive. A generation without blocks starts with a new one.
  static std::mutex mutex;
  static std::map<std::pair<const nccl::library*, const device*>, std::weak_ptr<nccl_memory>> known;
  const std::lock_guard lock{mutex};
  auto& entry = known[{library.get(), where.get()}];
  auto result = entry.lock();
  if (!result) {
    result = std::make_shared<nccl_memory>(std::move(library), std::move(where));
    entry = result;
  }
  return result;
}

expected<device_memory> nccl_memory::allocate(std::uint64_t size_bytes) {
  if (!library_->can_register())
    return device_memory::make(where_, size_bytes);
  TROUPE_TRY(where_->make_current());
  void* data = nullptr;
  // Where NCCL cannot allocate, as on devices without virtual memory, plain memory works too, and its error says how
  // much is free.
  if (library_->mem_alloc(&data, size_bytes) != nccl::success || data == nullptr)
    return device_memory::make(where_, size_bytes);
  auto* begin = static_cast<std::byte*>(data);
  const std::lock_guard lock{mutex_};
  blocks_[begin] = {size_bytes, nullptr, nullptr};
  return device_memory{begin, size_bytes, [self = shared_from_this()](std::byte* x) { self->release(x); }};
}

void nccl_memory::release(std::byte* data) noexcept {
  const std::lock_guard lock{mutex_};
  auto found = blocks_.extract(data);
  if (found.empty())
    return;
  const auto& block = found.mapped();
  if (block.group != nullptr)
    static_cast<void>(library_->comm_deregister(block.group, block.handle));
  if (where_->make_current())
    static_cast<void>(library_->mem_free(data));
}

nccl::result nccl_memory::use(nccl::comm group, const std::byte* data) {
  const std::lock_guard lock{mutex_};
  auto behind = blocks_.upper_bound(data);
  if (behind == blocks_.begin())
    return nccl::success;
  auto& [begin, block] = *--behind;
  if (data >= begin + block.size_bytes || block.group == group)
    return nccl::success;
  const auto code = library_->comm_register(group, const_cast<std::byte*>(begin), block.size_bytes, &block.handle);
  if (code == nccl::success)
    block.group = group;
  return code;
}

void nccl_memory::leave(nccl::comm group, bool is_alive) noexcept {
  const std::lock_guard lock{mutex_};
  for (auto& [begin, block] : blocks_) {
    if (group == nullptr || block.group != group)
      continue;
    if (is_alive)
      static_cast<void>(library_->comm_deregister(group, block.handle));
    block.group = nullptr;
    block.handle = nullptr;
  }
}

} // namespace troupe::collectives

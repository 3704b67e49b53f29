#include "memory.hpp"

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>
#include <sys/mman.h>
#include <utility>

namespace fake_cuda {

namespace {

constexpr std::size_t page_bytes = 4096;

std::size_t pages(std::size_t size_bytes) {
  return (size_bytes + page_bytes - 1) / page_bytes * page_bytes;
}

/// The protection key of device memory; negative without support by the processor.
int protection_key() noexcept {
  static const int key = is_synchronous() ? -1 : ::pkey_alloc(0, PKEY_DISABLE_ACCESS);
  return key;
}

} // namespace

bool is_synchronous() noexcept {
  static const auto* value = std::getenv("TROUPE_FAKE_CUDA_SYNCHRONOUS");
  return value != nullptr && std::string_view{value} == "1";
}

void open_device_memory() noexcept {
  if (protection_key() >= 0)
    static_cast<void>(::pkey_set(protection_key(), 0));
}

void* memory_table::add(std::size_t size_bytes, memory_kind kind, int device) {
  auto* data = ::mmap(nullptr, pages(size_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    return nullptr;
  std::memset(data, 0xa5, size_bytes);
  if (kind == memory_kind::device && protection_key() >= 0)
    static_cast<void>(::pkey_mprotect(data, pages(size_bytes), PROT_READ | PROT_WRITE, protection_key()));
  regions_[reinterpret_cast<std::uintptr_t>(data)] = {size_bytes, kind, device};
  return data;
}

void* memory_table::allocate_device(int device, std::size_t size_bytes, std::size_t total_bytes) {
  const std::lock_guard lock{mutex_};
  if (size_bytes > total_bytes - allocated_[device])
    return nullptr;
  auto* data = add(size_bytes, memory_kind::device, device);
  if (data != nullptr)
    allocated_[device] += size_bytes;
  return data;
}

void* memory_table::allocate_pinned(std::size_t size_bytes) {
  const std::lock_guard lock{mutex_};
  return add(size_bytes, memory_kind::pinned, -1);
}

bool memory_table::release(void* data, memory_kind kind) {
  const std::lock_guard lock{mutex_};
  const auto found = regions_.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == regions_.end() || found->second.kind != kind)
    return false;
  if (kind == memory_kind::device)
    allocated_[found->second.device] -= found->second.size_bytes;
  ::munmap(data, pages(found->second.size_bytes));
  regions_.erase(found);
  return true;
}

bool memory_table::overlaps(std::uintptr_t first, std::size_t size_bytes) const {
  const auto next = regions_.lower_bound(first + size_bytes);
  if (next == regions_.begin())
    return false;
  const auto& [begin, region] = *std::prev(next);
  return begin + region.size_bytes > first;
}

cudaError_t memory_table::add_registered(void* data, std::size_t size_bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  const std::lock_guard lock{mutex_};
  if (data == nullptr || size_bytes == 0)
    return cudaErrorInvalidValue;
  if (overlaps(first, size_bytes))
    return cudaErrorHostMemoryAlreadyRegistered;
  // Rounded up to whole pages.
  const auto last_page = (first + size_bytes - 1) / page_bytes;
  for (const auto& [begin, region] : regions_)
    if (region.kind == memory_kind::registered && begin / page_bytes <= last_page &&
        (begin + region.size_bytes - 1) / page_bytes >= first / page_bytes)
      return cudaErrorHostMemoryAlreadyRegistered;
  regions_[first] = {size_bytes, memory_kind::registered, -1};
  return cudaSuccess;
}

cudaError_t memory_table::remove_registered(void* data) {
  const std::lock_guard lock{mutex_};
  const auto found = regions_.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == regions_.end() || found->second.kind != memory_kind::registered)
    return cudaErrorHostMemoryNotRegistered;
  regions_.erase(found);
  return cudaSuccess;
}

bool memory_table::find(const void* data, std::size_t size_bytes, memory_kind& kind) {
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  const std::lock_guard lock{mutex_};
  kind = memory_kind::pageable;
  if (!overlaps(first, size_bytes))
    return true;
  const auto& [begin, region] = *std::prev(regions_.upper_bound(first + size_bytes - 1));
  kind = region.kind;
  return begin <= first && first + size_bytes <= begin + region.size_bytes;
}

std::optional<address_range> memory_table::around(std::uintptr_t at) {
  const std::lock_guard lock{mutex_};
  if (!overlaps(at, 1))
    return std::nullopt;
  const auto& [begin, region] = *std::prev(regions_.upper_bound(at));
  return address_range{begin, begin + region.size_bytes};
}

std::size_t memory_table::allocated_bytes(int device) {
  const std::lock_guard lock{mutex_};
  return allocated_[device];
}

} // namespace fake_cuda

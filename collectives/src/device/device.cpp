#include <troupe/collectives/device.hpp>

#include <fmt/format.h>

namespace troupe::collectives {

std::string to_string(const device_info& info) {
  // Indices differ between processes. The UUID identifies the GPU on its host; its first group is enough.
  return fmt::format("GPU {} ({}, {})", info.index, info.name, info.uuid.substr(0, info.uuid.find('-', 4)));
}

expected<device_memory> device_memory::make(std::shared_ptr<device> where, std::uint64_t size_bytes) {
  if (size_bytes == 0)
    return device_memory{};
  TROUPE_TRY(auto data, where->allocate(size_bytes));
  return device_memory{data, size_bytes, [where = std::move(where)](std::byte* x) { where->release(x); }};
}

expected<pinned_memory> pinned_memory::make(std::shared_ptr<device> where, std::uint64_t size_bytes) {
  pinned_memory result;
  if (size_bytes == 0)
    return result;
  TROUPE_TRY(auto data, where->allocate_pinned(size_bytes));
  result.data_ = {data, [where = std::move(where)](std::byte* x) { where->release_pinned(x); }};
  result.size_bytes_ = size_bytes;
  return result;
}

expected<pinned_registration> pinned_registration::make(std::shared_ptr<device> where,
                                                        std::span<const std::byte> memory, device::host_access access) {
  pinned_registration result;
  if (memory.empty())
    return result;
  TROUPE_TRY(where->pin(memory.data(), memory.size(), access));
  result.memory_ = {memory.data(), [where = std::move(where)](const std::byte* x) { where->unpin(x); }};
  return result;
}

expected<device_stream> device_stream::make(std::shared_ptr<device> where, device::stream_priority priority) {
  TROUPE_TRY(auto handle, where->make_stream(priority));
  device_stream result;
  result.handle_ = {handle, [where](void* x) { where->destroy_stream(x); }};
  result.where_ = std::move(where);
  return result;
}

expected<device_event> device_event::make(std::shared_ptr<device> where) {
  TROUPE_TRY(auto handle, where->make_event());
  device_event result;
  result.handle_ = {handle, [where](void* x) { where->destroy_event(x); }};
  result.where_ = std::move(where);
  return result;
}

} // namespace troupe::collectives

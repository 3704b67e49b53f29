#pragma once

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>

namespace troupe::collectives {

/// This process's memory that peers can read: one sealed memory file from which blocks are allocated. No other process
/// can write to it, except with `peer_access::pinnable`. A process has one pool for its lifetime; receivers of its
/// descriptor see all blocks at their offsets.
///
/// Blocks start on page boundaries. Allocation backs them with memory, so no later access fails. Freed blocks are
/// reused. From any thread.
class shared_pool final : public std::pmr::memory_resource {
 public:
  /// What holders of the descriptor can map. Devices copy from pinned memory, and most hosts pin only memory that the
  /// process may write. `pinnable` is for memory that a peer's device reads; peers do not write to it by convention
  /// only.
  enum class peer_access : std::uint8_t { read_only, pinnable };

  /// The default capacity is this machine's memory. Only allocated blocks use memory.
  [[nodiscard]] static expected<std::shared_ptr<shared_pool>> make(std::uint64_t capacity_bytes = 0,
                                                                   peer_access peers = peer_access::read_only);

  ~shared_pool() override;

  /// The file to pass to the peers. Borrowed.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] std::uint64_t capacity_bytes() const noexcept { return capacity_bytes_; }

  /// Whether all these bytes lie in this pool's blocks.
  [[nodiscard]] bool contains(const void* data, std::size_t size_bytes) const noexcept;

  /// Their offset in the file.
  [[nodiscard]] std::uint64_t offset_of(const void* data) const noexcept;

 private:
  shared_pool(unique_fd fd, std::byte* base, std::uint64_t capacity_bytes);

  void* do_allocate(std::size_t size_bytes, std::size_t alignment) override;
  void do_deallocate(void* data, std::size_t size_bytes, std::size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  unique_fd fd_;
  std::byte* base_;
  std::uint64_t capacity_bytes_;
  std::mutex mutex_;
  /// The free ranges below `end_`, as offset and size; never adjacent.
  std::map<std::uint64_t, std::uint64_t> free_;
  std::uint64_t end_ = 0;
};

} // namespace troupe::collectives

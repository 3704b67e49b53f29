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

/// Memory of this process that others may read, and (but for `peer_access::pinnable`) nobody else can write: one file
/// in memory, sealed, from which blocks are taken. A process has one for its life; who gets its descriptor sees all
/// blocks at their offsets.
///
/// Blocks start on page boundaries and are backed by memory when they are taken, so that no access fails later. What
/// is given back is kept for the next block. From any thread.
class shared_pool final : public std::pmr::memory_resource {
 public:
  /// What those who get the descriptor can map. Devices fetch from memory that is pinned, and most hosts pin only what
  /// a process may write: `pinnable` is for what a peer's device fetches, and nobody else writes it by agreement alone.
  enum class peer_access : std::uint8_t { read_only, pinnable };

  /// Room for as many bytes as this machine has memory, or `capacity_bytes`; only what is taken costs memory.
  [[nodiscard]] static expected<std::shared_ptr<shared_pool>> make(std::uint64_t capacity_bytes = 0,
                                                                   peer_access peers = peer_access::read_only);

  ~shared_pool() override;

  /// The file, to be passed to the peers. Borrowed.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] std::uint64_t capacity_bytes() const noexcept { return capacity_bytes_; }

  /// Whether the bytes lie in blocks of this pool.
  [[nodiscard]] bool contains(const void* data, std::size_t size_bytes) const noexcept;

  /// Where in the file they lie.
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
  /// What is free below `end_`: offset and size, never adjacent to each other.
  std::map<std::uint64_t, std::uint64_t> free_;
  std::uint64_t end_ = 0;
};

} // namespace troupe::collectives

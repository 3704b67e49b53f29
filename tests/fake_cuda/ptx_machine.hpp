#pragma once

#include "address_range.hpp"
#include "ptx_program.hpp"

#include <functional>
#include <optional>
#include <span>

namespace fake_cuda::ptx {

/// Finds the allocation that contains an address.
using range_finder = std::function<std::optional<address_range>(std::uintptr_t)>;

/// Records the memory accesses of one launch and checks that they are allowed.
class memory_watch {
 public:
  memory_watch(const kernel& what, std::span<const std::byte> parameters, const range_finder& find)
      : parameters_(parameters), shared_(what.shared_bytes), marks_(what.shared_bytes), find_(find) {}

  /// Sets the thread of the following accesses.
  void set_thread(std::uint32_t thread) noexcept { thread_ = thread; }
  void begin_block();
  void pass_barrier() noexcept { ++interval_; }

  const std::byte* parameter(std::uint64_t at, std::size_t size_bytes) const;
  std::byte* shared(std::uint64_t at, std::size_t size_bytes, bool writes);
  std::byte* global(std::uint64_t at, std::size_t size_bytes, bool writes);

  /// Throws if two threads have accessed the same global memory and one of them has written it.
  void look_for_races();

 private:
  struct access {
    std::uintptr_t first;
    std::uint32_t thread;
    std::uint16_t size_bytes;
    bool writes;
  };
  /// The accesses to a byte of shared memory, with the interval between two barriers.
  struct mark {
    std::uint64_t written = 0;
    std::uint64_t read = 0;
    std::uint32_t writer = 0;
    /// The last reader, and another one if there is one.
    std::uint32_t reader = 0;
    std::optional<std::uint32_t> other_reader;
  };

  std::span<const std::byte> parameters_;
  std::vector<std::byte> shared_;
  std::vector<mark> marks_;
  const range_finder& find_;
  std::array<address_range, 8> known_{};
  std::size_t next_known_ = 0;
  std::vector<access> accesses_;
  std::uint32_t thread_ = 0;
  std::uint64_t interval_ = 1;
  std::uint64_t block_began_ = 1;
};

/// The operands of an instruction.
struct lane {
  word* registers;
  memory_watch& memory;
};

/// Runs all threads of a kernel on the calling thread, block after block. The threads of a block run one after another
/// up to a barrier. Throws `violation`, which names kernel, thread and line, if a thread accesses memory outside the
/// device's allocations or unaligned; if two threads access the same memory and one of them writes (shared memory:
/// between two barriers; global memory: anywhere in the launch, up to some two million accesses); if shared memory is
/// read before it is written; and if not all threads of a block reach the same barrier.
void run(const kernel& what, unsigned blocks, unsigned threads, std::span<const std::byte> parameters,
         const range_finder& find);

} // namespace fake_cuda::ptx

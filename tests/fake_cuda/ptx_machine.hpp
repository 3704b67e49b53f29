#pragma once

#include "address_range.hpp"
#include "ptx_program.hpp"

#include <functional>
#include <optional>
#include <span>

namespace fake_cuda::ptx {

/// The allocation that an address lies in.
using range_finder = std::function<std::optional<address_range>(std::uintptr_t)>;

/// What the threads of one launch do to memory, and whether they may.
class memory_watch {
 public:
  memory_watch(const kernel& what, std::span<const std::byte> parameters, const range_finder& find)
      : parameters_(parameters), shared_(what.shared_bytes), marks_(what.shared_bytes), find_(find) {}

  /// The thread that the next accesses are of.
  void set_thread(std::uint32_t thread) noexcept { thread_ = thread; }
  void begin_block();
  void pass_barrier() noexcept { ++interval_; }

  const std::byte* parameter(std::uint64_t at, std::size_t size_bytes) const;
  std::byte* shared(std::uint64_t at, std::size_t size_bytes, bool writes);
  std::byte* global(std::uint64_t at, std::size_t size_bytes, bool writes);

  /// Throws when a thread has touched global memory that another has written.
  void look_for_races();

 private:
  struct access {
    std::uintptr_t first;
    std::uint32_t thread;
    std::uint16_t size_bytes;
    bool writes;
  };
  /// Who has touched a byte of shared memory, in which interval between two barriers.
  struct mark {
    std::uint64_t written = 0;
    std::uint64_t read = 0;
    std::uint32_t writer = 0;
    /// The last one, and another, if there is one.
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

/// What an instruction works on.
struct lane {
  word* registers;
  memory_watch& memory;
};

/// Runs all threads of a kernel on the calling thread, block after block. The threads of a block run one after the
/// other up to a barrier. Throws `violation`, which names kernel, thread and line, when a thread leaves the memory of
/// the device or is not aligned there, when two threads touch the same memory and one of them writes (shared memory:
/// between two barriers; global memory: anywhere in the launch, as long as it has not more than some two million
/// accesses), when shared memory is read before it is written, and when not all threads of a block come to the same
/// barrier.
void run(const kernel& what, unsigned blocks, unsigned threads, std::span<const std::byte> parameters,
         const range_finder& find);

} // namespace fake_cuda::ptx

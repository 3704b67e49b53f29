#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

/// The part of PTX that nvcc makes of Troupe's kernels (PTX ISA 9.0, chapters 5 to 9). What is not known is refused: an
/// instruction that nobody meant to be there, a fused multiply-add say, does not go unnoticed.
namespace fake_cuda::ptx {

/// What a register holds: as many low bits as its type has. What is narrower is extended, by its sign if it has one.
using word = std::uint64_t;

/// What a kernel may not do, or what is not understood of it.
struct violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct lane;
struct instruction;
using handler = void (*)(lane&, const instruction&);

enum class flow : std::uint8_t { next, branch, barrier, end };

struct instruction {
  handler run = nullptr;
  flow then = flow::next;
  /// Of the predicate that decides whether it is executed; -1: it always is.
  int guard = -1;
  bool guard_is_negated = false;
  /// Places of registers, or of constants, which lie behind them.
  std::array<int, 4> to{};
  std::array<int, 4> from{};
  /// Of a vector that is loaded, stored, packed or unpacked.
  int width = 1;
  /// Beside the register with an address.
  std::int64_t offset_bytes = 0;
  /// Of a branch, among the instructions.
  std::size_t target = 0;
  int line = 0;
};

/// Of a kernel: how it takes them, one after the other.
struct parameter {
  std::size_t offset_bytes = 0;
  std::size_t size_bytes = 0;
};

/// Where a thread stands. First among the registers.
enum special : int { thread_x, threads_x, block_x, blocks_x, special_registers };

struct kernel {
  std::string name;
  std::vector<parameter> parameters;
  std::size_t parameter_bytes = 0;
  std::size_t shared_bytes = 0;
  /// A block has no more; 0: nothing is said of it.
  unsigned most_threads = 0;
  bool has_barriers = false;
  std::vector<instruction> code;
  /// All registers at a thread's start: constants behind those that are written.
  std::vector<word> registers;
};

/// The kernels of a text by their mangled names. Throws `violation`, with the line.
std::map<std::string, kernel, std::less<>> parse(std::string_view text);

/// What `name` ("ld.global.f32": without guards, widths and cache hints) does, or null.
handler find_handler(std::string_view name);

} // namespace fake_cuda::ptx

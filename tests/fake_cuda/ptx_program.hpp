#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

/// The subset of PTX that nvcc generates for Troupe's kernels (PTX ISA 9.0, chapters 5 to 9). Everything else is
/// rejected, so that an unintended instruction, such as a fused multiply-add, is noticed.
namespace fake_cuda::ptx {

/// The content of a register: as many low bits as its type has. Narrower values are sign- or zero-extended.
using word = std::uint64_t;

/// An error of a kernel, or PTX that is not supported.
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
  /// The predicate that guards execution; -1 for none.
  int guard = -1;
  bool guard_is_negated = false;
  /// Indices of registers, or of constants, which follow them.
  std::array<int, 4> to{};
  std::array<int, 4> from{};
  /// The width of a vector that is loaded, stored, packed or unpacked.
  int width = 1;
  /// Added to the register with an address.
  std::int64_t offset_bytes = 0;
  /// The target of a branch, as an index of an instruction.
  std::size_t target = 0;
  int line = 0;
};

/// A parameter of a kernel, in order.
struct parameter {
  std::size_t offset_bytes = 0;
  std::size_t size_bytes = 0;
};

/// The position of a thread, in the first registers.
enum special : int { thread_x, threads_x, block_x, blocks_x, special_registers };

struct kernel {
  std::string name;
  std::vector<parameter> parameters;
  std::size_t parameter_bytes = 0;
  std::size_t shared_bytes = 0;
  /// The limit on threads in a block; 0 if not declared.
  unsigned most_threads = 0;
  bool has_barriers = false;
  std::vector<instruction> code;
  /// All registers at a thread's start: constants follow the writable ones.
  std::vector<word> registers;
};

/// Parses the kernels of a text, by mangled name. Throws `violation` with the line.
std::map<std::string, kernel, std::less<>> parse(std::string_view text);

/// The handler of `name` ("ld.global.f32": without guards, widths and cache hints), or null.
handler find_handler(std::string_view name);

} // namespace fake_cuda::ptx

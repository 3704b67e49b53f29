#pragma once

#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace troupe {

/// The way to a tracked tensor whose bytes no pointer of this process leads to, such as memory of a GPU: through it
/// the runtime copies them out and in, and in no other way. Calls come from the training thread, while the body's own
/// work on the tensor has been put on its way, though it may still run: a copy begins after it. Errors are final.
class tensor_memory {
 public:
  virtual ~tensor_memory() = default;

  [[nodiscard]] virtual std::uint64_t size_bytes() const noexcept = 0;

  /// Copies the bytes from `offset_bytes` on to `target`, and returns when they are there.
  [[nodiscard]] virtual expected<void> read(std::uint64_t offset_bytes, std::span<std::byte> target) = 0;

  /// Copies `source` to the bytes from `offset_bytes` on. Whatever the body begins later sees them; `source` may change
  /// when this returns.
  [[nodiscard]] virtual expected<void> write(std::uint64_t offset_bytes, std::span<const std::byte> source) = 0;

  /// Makes copies into `memory` fast for as long as the result lives, which is shorter than `memory` does: a GPU pins
  /// it. Null where nothing is to be gained. From any thread.
  [[nodiscard]] virtual std::shared_ptr<const void> prepare(std::span<std::byte> memory) {
    static_cast<void>(memory);
    return nullptr;
  }
};

} // namespace troupe

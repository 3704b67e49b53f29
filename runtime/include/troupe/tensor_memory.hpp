#pragma once

#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace troupe {

/// Access to a tracked tensor that is not in host memory, for example on a GPU. The runtime copies it only through this
/// interface. Called on the training thread, when the body's own work on the tensor has been submitted but may still
/// run: copies must be ordered after it. Errors are final.
class tensor_memory {
 public:
  virtual ~tensor_memory() = default;

  [[nodiscard]] virtual std::uint64_t size_bytes() const noexcept = 0;

  /// Copies the bytes from `offset_bytes` on to `target`, and returns when the copy is complete.
  [[nodiscard]] virtual expected<void> read(std::uint64_t offset_bytes, std::span<std::byte> target) = 0;

  /// Copies `source` to the bytes from `offset_bytes` on. Later work of the body sees them; `source` may change when
  /// this returns.
  [[nodiscard]] virtual expected<void> write(std::uint64_t offset_bytes, std::span<const std::byte> source) = 0;

  /// Makes copies into `memory` faster while the result exists (a GPU pins it); null if there is nothing to gain.
  /// `memory` outlives the result. From any thread.
  [[nodiscard]] virtual std::shared_ptr<const void> prepare(std::span<std::byte> memory) {
    static_cast<void>(memory);
    return nullptr;
  }
};

} // namespace troupe

#pragma once

#include <cstdint>
#include <vector>

namespace troupe::training {

/// The positions of a gradient's parts in a flat f32 array: one after the other, each aligned to 64 bytes, so that
/// kernels see the same offsets wherever the array is.
class gradient_layout {
 public:
  struct part {
    std::uint64_t first = 0;
    std::uint64_t elements = 0;
    /// Including the padding up to the next boundary.
    std::uint64_t padded = 0;
  };

  /// Returns the part's index.
  std::size_t add(std::uint64_t elements) {
    constexpr std::uint64_t boundary = 64 / sizeof(float);
    auto padded = (elements + boundary - 1) / boundary * boundary;
    parts_.push_back({elements_, elements, padded});
    elements_ += padded;
    return parts_.size() - 1;
  }

  [[nodiscard]] const part& operator[](std::size_t index) const noexcept { return parts_[index]; }
  [[nodiscard]] std::uint64_t elements() const noexcept { return elements_; }

 private:
  std::vector<part> parts_;
  std::uint64_t elements_ = 0;
};

} // namespace troupe::training

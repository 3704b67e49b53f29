#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::data {

/// A decoded image: row after row, the channels of a pixel side by side. Reused from image to image.
struct pixels {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  /// 1 for grey, 3 for red, green, blue.
  std::uint32_t channels = 0;
  std::vector<std::uint8_t> values;

  [[nodiscard]] std::size_t row_bytes() const noexcept { return std::size_t{width} * channels; }

  void reset(std::uint32_t new_width, std::uint32_t new_height, std::uint32_t new_channels) {
    width = new_width;
    height = new_height;
    channels = new_channels;
    values.resize(row_bytes() * height);
  }
};

} // namespace troupe::data

#pragma once

#include "images/pixels.hpp"

#include <troupe/data/images.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::data {

/// Changes decoded images to the form of samples, as `image_set` describes it. Keeps its memory from image to image;
/// used by one thread at a time.
class image_shaper {
 public:
  explicit image_shaper(const image_options& options)
      : height_(options.height), width_(options.width), channels_(options.channels), fit_(options.fit) {}

  /// Changes `image`, and writes height x width x channels values. Fails with `errc::invalid_argument` for an image of
  /// another size with `image_fit::exact`.
  [[nodiscard]] expected<void> shape(pixels& image, std::span<std::uint8_t> out);

 private:
  /// The source pixels that contribute to one output pixel.
  struct window {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    std::size_t weights = 0;
  };

  /// The windows of `count` output pixels from `first` on, of `to` that cover a side of `from` pixels.
  struct side {
    std::vector<window> windows;
    std::vector<std::uint32_t> weights;

    void set(std::uint64_t from, std::uint64_t to, std::uint64_t first, std::uint32_t count);
  };

  template <std::size_t Channels>
  void resample(const pixels& image, std::span<std::uint8_t> out);
  template <std::size_t Channels>
  void resample_row(const std::uint8_t* row, std::uint8_t* out) const;
  void choose_sides(const pixels& image);

  std::uint32_t height_;
  std::uint32_t width_;
  std::uint32_t channels_;
  image_fit fit_;
  side columns_;
  side rows_;
  std::vector<std::uint8_t> narrowed_;
  std::vector<std::uint32_t> sums_;
  std::vector<std::uint8_t> grey_;
};

} // namespace troupe::data

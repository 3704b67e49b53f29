#include "images/resize.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace troupe::data {

namespace {

/// The weights of a window add up to 2^22, up to rounding. An image has at most 2^14 pixels per side, so the rounding
/// of a window's weights stays below half a value, and sums below 2^31.
constexpr unsigned weight_bits = 22;
constexpr std::uint32_t half = 1U << (weight_bits - 1);

std::uint8_t rounded(std::uint32_t sum) {
  return static_cast<std::uint8_t>(std::min((sum + half) >> weight_bits, 255U));
}

void to_grey(pixels& image) {
  const auto* from = image.values.data();
  auto* to = image.values.data();
  const auto count = std::size_t{image.width} * image.height;
  for (std::size_t i = 0; i < count; ++i, from += 3)
    *to++ = static_cast<std::uint8_t>((19595U * from[0] + 38470U * from[1] + 7471U * from[2] + 32768U) >> 16U);
  image.reset(image.width, image.height, 1);
}

} // namespace

// Output pixel x covers the source around (2x + 1) from / (2 to), and source pixel i lies at i + 1/2. The triangle is
// as wide as a source pixel when an image grows, and as an output pixel when it shrinks. Times 2 max(from, to) x to,
// its height at i is the integer 2 max(from, to) - |(2i + 1) to - (2x + 1) from|.
void image_shaper::side::set(std::uint64_t from, std::uint64_t to, std::uint64_t first, std::uint32_t count) {
  windows.clear();
  weights.clear();
  const auto n = static_cast<std::int64_t>(from);
  const auto m = static_cast<std::int64_t>(std::max<std::uint64_t>(to, 1)); // never 0, as `count` of them are wanted
  const auto reach = 2 * std::max(n, m);
  std::vector<std::int64_t> heights;
  for (std::uint32_t k = 0; k < count; ++k) {
    const auto centre = (2 * static_cast<std::int64_t>(first + k) + 1) * n;
    const auto low = std::max<std::int64_t>(0, (centre - reach) / (2 * m) - 1);
    const auto high = std::min<std::int64_t>(n - 1, (centre + reach) / (2 * m) + 1);
    auto own = window{0, 0, weights.size()};
    heights.clear();
    std::int64_t total = 0;
    for (auto i = low; i <= high; ++i) {
      const auto height = reach - std::abs((2 * i + 1) * m - centre);
      if (height <= 0)
        continue;
      if (heights.empty())
        own.first = static_cast<std::uint32_t>(i);
      heights.push_back(height);
      total += height;
    }
    own.count = static_cast<std::uint32_t>(heights.size());
    for (auto height : heights)
      weights.push_back(static_cast<std::uint32_t>(((height << weight_bits) + total / 2) / total));
    windows.push_back(own);
  }
}

void image_shaper::choose_sides(const pixels& image) {
  std::uint64_t scaled_width = width_;
  std::uint64_t scaled_height = height_;
  if (fit_ == image_fit::crop) {
    const auto by_width = std::uint64_t{width_} * image.height;
    const auto by_height = std::uint64_t{height_} * image.width;
    if (by_width >= by_height)
      scaled_height = by_width / image.width;
    else
      scaled_width = by_height / image.height;
  }
  columns_.set(image.width, scaled_width, (scaled_width - width_) / 2, width_);
  rows_.set(image.height, scaled_height, (scaled_height - height_) / 2, height_);
}

template <std::size_t Channels>
void image_shaper::resample_row(const std::uint8_t* row, std::uint8_t* out) const {
  for (const auto& w : columns_.windows) {
    std::uint32_t sums[Channels]{};
    const auto* from = row + std::size_t{w.first} * Channels;
    const auto* weight = columns_.weights.data() + w.weights;
    for (std::uint32_t i = 0; i < w.count; ++i, from += Channels)
      for (std::size_t c = 0; c < Channels; ++c)
        sums[c] += weight[i] * from[c];
    for (auto sum : sums)
      *out++ = rounded(sum);
  }
}

template <std::size_t Channels>
void image_shaper::resample(const pixels& image, std::span<std::uint8_t> out) {
  choose_sides(image);
  const auto row_values = std::size_t{width_} * Channels;
  const auto first_row = rows_.windows.front().first;
  const auto end_row = rows_.windows.back().first + rows_.windows.back().count;
  narrowed_.resize((end_row - first_row) * row_values);
  for (auto y = first_row; y < end_row; ++y)
    resample_row<Channels>(image.values.data() + y * image.row_bytes(),
                           narrowed_.data() + (y - first_row) * row_values);
  for (std::size_t y = 0; y < height_; ++y) {
    const auto& w = rows_.windows[y];
    sums_.assign(row_values, 0);
    for (std::uint32_t i = 0; i < w.count; ++i) {
      const auto weight = rows_.weights[w.weights + i];
      const auto* from = narrowed_.data() + (w.first + i - first_row) * row_values;
      for (std::size_t x = 0; x < row_values; ++x)
        sums_[x] += weight * from[x];
    }
    std::ranges::transform(sums_, out.begin() + static_cast<std::ptrdiff_t>(y * row_values), rounded);
  }
}

expected<void> image_shaper::shape(pixels& image, std::span<std::uint8_t> out) {
  const bool same_size = image.width == width_ && image.height == height_;
  if (fit_ == image_fit::exact && !same_size)
    return fail(errc::invalid_argument, fmt::format("{} x {} pixels (width x height), expected {} x {}", image.width,
                                                    image.height, width_, height_));
  if (channels_ == 1 && image.channels == 3)
    to_grey(image);
  const bool widen = channels_ == 3 && image.channels == 1;
  grey_.resize(widen ? out.size() / 3 : 0);
  const auto target = widen ? std::span{grey_} : out;
  if (same_size)
    std::ranges::copy(image.values, target.begin());
  else if (image.channels == 1)
    resample<1>(image, target);
  else
    resample<3>(image, target);
  for (std::size_t i = 0; i < grey_.size(); ++i)
    std::ranges::fill(out.subspan(3 * i, 3), grey_[i]);
  return {};
}

} // namespace troupe::data

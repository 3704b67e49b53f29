#include "images/decode.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>

namespace troupe::data {

namespace {

constexpr std::array<std::uint8_t, 3> jpeg_start{0xff, 0xd8, 0xff};
constexpr std::array<std::uint8_t, 8> png_start{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

template <std::size_t Size>
bool starts_with(std::span<const std::byte> encoded, const std::array<std::uint8_t, Size>& start) {
  return encoded.size() >= Size && std::ranges::equal(encoded.first(Size), std::as_bytes(std::span{start}));
}

} // namespace

expected<void> check_image_size(std::uint64_t width, std::uint64_t height, std::uint64_t most_pixels) {
  if (width == 0 || height == 0)
    return fail(errc::damaged, fmt::format("{} x {} pixels: the image is empty", width, height));
  if (width > largest_image_side || height > largest_image_side || width * height > most_pixels)
    return fail(errc::invalid_argument,
                fmt::format("{} x {} pixels: at most {} per side and {} in total are decoded: scale the image down",
                            width, height, largest_image_side, most_pixels));
  return {};
}

expected<void> decode_image(std::span<const std::byte> encoded, pixels& out, std::uint64_t most_pixels) {
  if (starts_with(encoded, jpeg_start))
    return decode_jpeg(encoded, out, most_pixels);
  if (starts_with(encoded, png_start))
    return decode_png(encoded, out, most_pixels);
  if (encoded.empty())
    return fail(errc::damaged, "the file is empty");
  return fail(errc::damaged, "neither a JPEG nor a PNG image by its first bytes");
}

} // namespace troupe::data

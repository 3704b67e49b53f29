#pragma once

#include "images/pixels.hpp"

#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace troupe::data {

/// Bounds of an image's size, checked before memory is allocated for it.
constexpr std::uint32_t largest_image_side = 1U << 14U;
constexpr std::uint64_t largest_image_pixels = std::uint64_t{1} << 27U;

/// Fails with `errc::invalid_argument` beyond the bounds, and with `errc::damaged` for a side of 0.
[[nodiscard]] expected<void> check_image_size(std::uint64_t width, std::uint64_t height, std::uint64_t most_pixels);

/// Decodes a JPEG or PNG image to 8 bits, grey or colour as it is stored. Messages have no name in front. Fails as
/// `image_set::fetch` does; the content of `out` is then undefined.
[[nodiscard]] expected<void> decode_image(std::span<const std::byte> encoded, pixels& out,
                                          std::uint64_t most_pixels = largest_image_pixels);

/// The same for one of the formats.
[[nodiscard]] expected<void> decode_jpeg(std::span<const std::byte> encoded, pixels& out, std::uint64_t most_pixels);
[[nodiscard]] expected<void> decode_png(std::span<const std::byte> encoded, pixels& out, std::uint64_t most_pixels);

/// A digest of what libjpeg makes of built-in images, one for each of the common subsamplings. Equal digests mean equal
/// decoders: a version number would not tell, because the library is loaded when the program starts, and has no
/// function that names it. PNG is lossless, and its conversions are defined. Fails as `decode_image` does if this
/// host's libjpeg cannot decode them.
[[nodiscard]] expected<std::string> decoder_digest();

} // namespace troupe::data

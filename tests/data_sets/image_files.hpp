#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <jpeglib.h>
#include <png.h>
#include <span>
#include <string>
#include <vector>

/// Images made by libjpeg and libpng, for the tests of the readers.
namespace troupe::testing {

using image_bytes = std::vector<std::uint8_t>;

inline std::span<const std::byte> encoded(const image_bytes& file) {
  return std::as_bytes(std::span{file});
}

struct png_form {
  int colour = PNG_COLOR_TYPE_RGB;
  int depth = 8;
  int interlace = PNG_INTERLACE_NONE;
  /// Sets palettes, transparency and texts.
  std::function<void(png_structp, png_infop)> more = {};
};

/// `rows` has the values as PNG stores them: 16 bits are big-endian, less than 8 are packed.
inline image_bytes make_png(std::uint32_t width, std::uint32_t height, const image_bytes& rows,
                            const png_form& form = {}) {
  image_bytes result;
  auto* png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  auto* info = png_create_info_struct(png);
  png_set_write_fn(
      png, &result,
      [](png_structp to, png_bytep bytes, std::size_t size) {
        auto* all = static_cast<image_bytes*>(png_get_io_ptr(to));
        all->insert(all->end(), bytes, bytes + size);
      },
      nullptr);
  png_set_IHDR(png, info, width, height, form.depth, form.colour, form.interlace, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (form.more)
    form.more(png, info);
  png_write_info(png, info);
  const auto row_bytes = png_get_rowbytes(png, info);
  REQUIRE(rows.size() == row_bytes * height);
  std::vector<png_bytep> places(height);
  for (std::size_t y = 0; y < height; ++y)
    places[y] = const_cast<png_bytep>(rows.data() + y * row_bytes);
  png_write_image(png, places.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return result;
}

struct jpeg_form {
  J_COLOR_SPACE colour = JCS_RGB;
  bool progressive = false;
  /// One scan for each of three components.
  bool separate = false;
  int horizontal = 2;
  int vertical = 2;
};

inline image_bytes make_jpeg(std::uint32_t width, std::uint32_t height, const image_bytes& rows,
                             const jpeg_form& form = {}) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = width;
  info.image_height = height;
  info.in_color_space = form.colour;
  info.input_components = form.colour == JCS_GRAYSCALE ? 1 : form.colour == JCS_CMYK ? 4 : 3;
  REQUIRE(rows.size() == std::size_t{width} * height * static_cast<std::size_t>(info.input_components));
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  info.comp_info[0].h_samp_factor = form.horizontal;
  info.comp_info[0].v_samp_factor = form.vertical;
  if (form.progressive)
    jpeg_simple_progression(&info);
  const jpeg_scan_info scans[] = {{1, {0}, 0, 63, 0, 0}, {1, {1}, 0, 63, 0, 0}, {1, {2}, 0, 63, 0, 0}};
  if (form.separate) {
    info.scan_info = scans;
    info.num_scans = 3;
  }
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < height) {
    auto* row = const_cast<JSAMPROW>(rows.data() + std::size_t{info.next_scanline} * width *
                                                       static_cast<std::size_t>(info.input_components));
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  image_bytes result(memory, memory + size);
  std::free(memory);
  jpeg_destroy_compress(&info);
  return result;
}

/// Values that differ from place to place.
inline image_bytes noise(std::size_t count, std::uint32_t seed = 1) {
  image_bytes result(count);
  for (auto& value : result) {
    seed = seed * 1664525U + 1013904223U;
    value = static_cast<std::uint8_t>(seed >> 24U);
  }
  return result;
}

/// For an image of this size.
inline image_bytes image_noise(std::size_t width, std::size_t height, std::size_t channels) {
  return noise(width * height * channels);
}

inline void write_file(const std::filesystem::path& path, const image_bytes& content) {
  std::filesystem::create_directories(path.parent_path());
  auto out = std::ofstream{path, std::ios::binary};
  out.write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
  REQUIRE(out.good());
}

} // namespace troupe::testing

#include "images/decode.hpp"

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <fmt/format.h>
#include <png.h>
#include <vector>

// As in jpeg.cpp: errors jump out of functions that have no objects with destructors.

namespace troupe::data {

namespace {

struct reading {
  std::span<const std::byte> rest;
  std::jmp_buf back;
  char text[128];
};

[[noreturn]] void on_error(png_structp png, png_const_charp text) {
  auto* to = static_cast<reading*>(png_get_error_ptr(png));
  std::snprintf(to->text, sizeof(to->text), "%s", text);
  std::longjmp(to->back, 1);
}

void on_read(png_structp png, png_bytep out, std::size_t size) {
  auto* from = static_cast<reading*>(png_get_io_ptr(png));
  if (size > from->rest.size())
    png_error(png, "truncated");
  std::memcpy(out, from->rest.data(), size);
  from->rest = from->rest.subspan(size);
}

bool read_header(png_structp png, png_infop info, reading& from) {
  if (setjmp(from.back) != 0)
    return false;
  png_set_read_fn(png, &from, &on_read);
  // Only what describes pixels is read: texts and profiles of any size cost nothing, and cannot be wrong.
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  // Our own bounds are checked instead, and explained.
  png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_read_info(png, info);
  return true;
}

bool choose_format(png_structp png, png_infop info, reading& from) {
  if (setjmp(from.back) != 0)
    return false;
  png_set_palette_to_rgb(png);
  png_set_expand_gray_1_2_4_to_8(png);
  png_set_scale_16(png);
  png_set_strip_alpha(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
  return true;
}

bool read_rows(png_structp png, png_bytepp rows, reading& from) {
  if (setjmp(from.back) != 0)
    return false;
  png_read_image(png, rows);
  // To the end, so that no truncation and no checksum is missed.
  png_read_end(png, nullptr);
  return true;
}

class png_reader {
 public:
  png_reader() {
    // Warnings are errors, too: with these chunks they mean damaged data.
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
    if (png_ != nullptr) {
      png_set_error_fn(png_, &from_, &on_error, &on_error);
      info_ = png_create_info_struct(png_);
    }
  }
  png_reader(const png_reader&) = delete;
  png_reader& operator=(const png_reader&) = delete;
  ~png_reader() { png_destroy_read_struct(&png_, &info_, nullptr); }

  expected<void> read(std::span<const std::byte> encoded, pixels& out, std::uint64_t most_pixels) {
    if (info_ == nullptr)
      return fail(errc::internal, fmt::format("libpng {} cannot be used by a program built with {}",
                                              png_get_libpng_ver(nullptr), PNG_LIBPNG_VER_STRING));
    from_.rest = encoded;
    if (!read_header(png_, info_, from_))
      return damaged();
    TROUPE_TRY(check_image_size(png_get_image_width(png_, info_), png_get_image_height(png_, info_), most_pixels));
    if (!choose_format(png_, info_, from_))
      return damaged();
    out.reset(png_get_image_width(png_, info_), png_get_image_height(png_, info_), png_get_channels(png_, info_));
    if (png_get_bit_depth(png_, info_) != 8 || (out.channels != 1 && out.channels != 3) ||
        png_get_rowbytes(png_, info_) != out.row_bytes())
      return fail(errc::internal, "libpng has not converted the image to 8 bits, grey or colour");
    rows_.resize(out.height);
    for (std::size_t y = 0; y < rows_.size(); ++y)
      rows_[y] = out.values.data() + y * out.row_bytes();
    if (!read_rows(png_, rows_.data(), from_))
      return damaged();
    return {};
  }

 private:
  [[nodiscard]] tl::unexpected<error> damaged() const {
    return fail(errc::damaged, fmt::format("damaged PNG image: {}", from_.text));
  }

  reading from_{};
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::vector<png_bytep> rows_;
};

} // namespace

expected<void> decode_png(std::span<const std::byte> encoded, pixels& out, std::uint64_t most_pixels) {
  return png_reader{}.read(encoded, out, most_pixels);
}

} // namespace troupe::data

#include "images/decode.hpp"

#include <csetjmp>
#include <cstdio>
#include <fmt/format.h>
#include <jpeglib.h>
#include <utility>

// libjpeg reports errors by a function that must not return, so it jumps. The functions that are jumped out of have no
// objects with destructors: they take what they work on by reference, and C++ allocates and releases outside of them.

namespace troupe::data {

namespace {

/// A progressive image may repeat its coefficients in any number of scans, at little cost in bytes and much in time.
constexpr int most_scans = 500;

struct error_report {
  jpeg_error_mgr base; // first: libjpeg has a pointer to it
  std::jmp_buf back;
  char text[JMSG_LENGTH_MAX];
};

[[noreturn]] void report(j_common_ptr info) {
  auto* to = reinterpret_cast<error_report*>(info->err);
  info->err->format_message(info, to->text);
  std::longjmp(to->back, 1);
}

/// Warnings (below 0) are damaged data, which libjpeg would replace by grey; the rest are traces.
void on_message(j_common_ptr info, int level) {
  if (level < 0)
    report(info);
}

void on_progress(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= most_scans)
    return;
  auto* to = reinterpret_cast<error_report*>(info->err);
  std::snprintf(to->text, sizeof(to->text), "more than %d scans", most_scans);
  std::longjmp(to->back, 1);
}

bool read_header(jpeg_decompress_struct& info, error_report& errors, std::span<const std::byte> encoded) {
  if (setjmp(errors.back) != 0)
    return false;
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(encoded.data()), encoded.size());
  jpeg_read_header(&info, TRUE);
  return true;
}

bool read_rows(jpeg_decompress_struct& info, error_report& errors, std::uint8_t* out, std::size_t row_bytes) {
  if (setjmp(errors.back) != 0)
    return false;
  // What decides the pixels, whatever a library's defaults are. The accurate integer DCT and smooth upsampling have the
  // same bits with and without vector instructions. Smoothing between blocks would only change images whose last scans
  // are missing, and differs between versions.
  info.dct_method = JDCT_ISLOW;
  info.do_fancy_upsampling = TRUE;
  info.do_block_smoothing = FALSE;
  jpeg_start_decompress(&info);
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = out + info.output_scanline * row_bytes;
    jpeg_read_scanlines(&info, &row, 1);
  }
  // Reads to the end of the image, so that no truncation is missed.
  jpeg_finish_decompress(&info);
  return true;
}

class jpeg_reader {
 public:
  jpeg_reader() {
    info_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = &report;
    errors_.base.emit_message = &on_message;
  }
  jpeg_reader(const jpeg_reader&) = delete;
  jpeg_reader& operator=(const jpeg_reader&) = delete;
  ~jpeg_reader() { jpeg_destroy_decompress(&info_); } // nothing, if it was not created

  expected<void> read(std::span<const std::byte> encoded, pixels& out, std::uint64_t most_pixels) {
    if (!read_header(info_, errors_, encoded))
      return damaged();
    TROUPE_TRY(check_image_size(info_.image_width, info_.image_height, most_pixels));
    TROUPE_TRY(choose_colours());
    progress_.progress_monitor = &on_progress;
    info_.progress = &progress_;
    out.reset(info_.image_width, info_.image_height, info_.out_color_space == JCS_GRAYSCALE ? 1 : 3);
    if (!read_rows(info_, errors_, out.values.data(), out.row_bytes()))
      return damaged();
    return {};
  }

 private:
  expected<void> choose_colours() {
    const auto stored = info_.jpeg_color_space;
    if (stored != JCS_GRAYSCALE && stored != JCS_RGB && stored != JCS_YCbCr)
      return fail(errc::invalid_argument,
                  fmt::format("a JPEG image of {} components (CMYK, for printing): convert it to RGB or grey",
                              info_.num_components));
    info_.out_color_space = stored == JCS_GRAYSCALE ? JCS_GRAYSCALE : JCS_RGB;
    return {};
  }

  [[nodiscard]] tl::unexpected<error> damaged() const {
    return fail(errc::damaged, fmt::format("damaged JPEG image: {}", errors_.text));
  }

  jpeg_decompress_struct info_{};
  jpeg_progress_mgr progress_{};
  error_report errors_{};
};

} // namespace

expected<void> decode_jpeg(std::span<const std::byte> encoded, pixels& out, std::uint64_t most_pixels) {
  return jpeg_reader{}.read(encoded, out, most_pixels);
}

} // namespace troupe::data

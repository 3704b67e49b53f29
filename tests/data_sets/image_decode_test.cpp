#include "image_files.hpp"

#include "images/decode.hpp"
#include "images/resize.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>
#include <zlib.h>

using namespace troupe;
using namespace troupe::data;
using testing::encoded;
using testing::image_bytes;
using testing::image_noise;
using testing::make_jpeg;
using testing::make_png;
using testing::noise;

namespace {

pixels decoded(const image_bytes& file) {
  pixels result;
  auto done = decode_image(encoded(file), result);
  REQUIRE_MESSAGE(done.has_value(), done.error().message);
  return result;
}

error refusal(const image_bytes& file) {
  pixels result;
  auto done = decode_image(encoded(file), result);
  return done ? error{} : done.error();
}

image_bytes shaped(pixels image, const image_options& options) {
  image_bytes result(std::size_t{options.height} * options.width * options.channels);
  auto done = image_shaper{options}.shape(image, result);
  REQUIRE_MESSAGE(done.has_value(), done.error().message);
  return result;
}

image_bytes shaped(std::uint32_t width, std::uint32_t height, const image_bytes& values, const image_options& options) {
  auto channels = static_cast<std::uint32_t>(values.size() / (std::size_t{width} * height));
  return shaped({width, height, channels, values}, options);
}

image_bytes from_text(const std::string& text) {
  return {text.begin(), text.end()};
}

void append_number(image_bytes& to, std::size_t value) {
  for (int shift = 24; shift >= 0; shift -= 8)
    to.push_back(static_cast<std::uint8_t>(value >> shift));
}

/// Inserts a chunk behind the header of a PNG.
image_bytes with_png_chunk(image_bytes file, const std::string& kind, const image_bytes& content) {
  image_bytes chunk;
  append_number(chunk, content.size());
  chunk.insert(chunk.end(), kind.begin(), kind.end());
  chunk.insert(chunk.end(), content.begin(), content.end());
  append_number(chunk, ::crc32(0, chunk.data() + 4, static_cast<uInt>(chunk.size() - 4)));
  file.insert(file.begin() + 33, chunk.begin(), chunk.end());
  return file;
}

/// Changes width and height in the header of a PNG, and its checksum.
image_bytes with_png_size(const image_bytes& file, std::uint32_t width, std::uint32_t height) {
  image_bytes result(file.begin(), file.begin() + 16);
  append_number(result, width);
  append_number(result, height);
  result.insert(result.end(), file.begin() + 24, file.begin() + 29);
  append_number(result, ::crc32(0, result.data() + 12, 17));
  result.insert(result.end(), file.begin() + 33, file.end());
  return result;
}

/// Changes width and height in the frame header of a JPEG.
image_bytes with_jpeg_size(image_bytes file, std::uint32_t width, std::uint32_t height) {
  const std::array<std::uint8_t, 2> frame{0xff, 0xc0};
  auto found = std::search(file.begin(), file.end(), frame.begin(), frame.end());
  REQUIRE(found != file.end());
  found[5] = static_cast<std::uint8_t>(height >> 8U);
  found[6] = static_cast<std::uint8_t>(height);
  found[7] = static_cast<std::uint8_t>(width >> 8U);
  found[8] = static_cast<std::uint8_t>(width);
  return file;
}

} // namespace

TEST_CASE("a PNG image has exactly the values that were written") {
  for (auto interlace : {PNG_INTERLACE_NONE, PNG_INTERLACE_ADAM7}) {
    auto colour = decoded(make_png(13, 9, image_noise(13, 9, 3), {.interlace = interlace}));
    CHECK(colour.width == 13);
    CHECK(colour.height == 9);
    CHECK(colour.channels == 3);
    CHECK(colour.values == image_noise(13, 9, 3));
    auto grey =
        decoded(make_png(13, 9, image_noise(13, 9, 1), {.colour = PNG_COLOR_TYPE_GRAY, .interlace = interlace}));
    CHECK(grey.channels == 1);
    CHECK(grey.values == image_noise(13, 9, 1));
  }
}

TEST_CASE("every kind of PNG becomes 8 bits, grey or colour") {
  SUBCASE("16 bits are rounded") {
    // 0, 128 -> 0, 129 -> 1, 25700 -> 100, 25828 -> 100, 25829 -> 101, 65535 -> 255
    auto rows = image_bytes{0, 0, 0, 128, 0, 129, 100, 100, 100, 228, 100, 229, 255, 255};
    CHECK(decoded(make_png(7, 1, rows, {.colour = PNG_COLOR_TYPE_GRAY, .depth = 16})).values ==
          image_bytes{0, 0, 1, 100, 100, 101, 255});
    auto colour = decoded(make_png(1, 1, {0, 129, 100, 228, 255, 255}, {.depth = 16}));
    CHECK(colour.values == image_bytes{1, 100, 255});
  }
  SUBCASE("few bits are spread over the range") {
    auto grey = [](int depth, std::uint8_t row, std::uint32_t width) {
      return decoded(make_png(width, 1, {row}, {.colour = PNG_COLOR_TYPE_GRAY, .depth = depth})).values;
    };
    CHECK(grey(1, 0b10100000, 4) == image_bytes{255, 0, 255, 0});
    CHECK(grey(2, 0b00011011, 4) == image_bytes{0, 85, 170, 255});
    CHECK(grey(4, 0x3f, 2) == image_bytes{51, 255});
  }
  SUBCASE("palettes become their colours, whatever is transparent") {
    auto palette = [](png_structp png, png_infop info) {
      const std::array<png_color, 3> colours{png_color{1, 2, 3}, {40, 50, 60}, {255, 254, 253}};
      png_set_PLTE(png, info, colours.data(), 3);
      const std::array<png_byte, 2> alpha{0, 128};
      png_set_tRNS(png, info, alpha.data(), 2, nullptr);
    };
    auto image = decoded(make_png(3, 1, {2, 0, 1}, {.colour = PNG_COLOR_TYPE_PALETTE, .more = palette}));
    CHECK(image.channels == 3);
    CHECK(image.values == image_bytes{255, 254, 253, 1, 2, 3, 40, 50, 60});
    auto packed = make_png(3, 1, {0b10000100}, {.colour = PNG_COLOR_TYPE_PALETTE, .depth = 2, .more = palette});
    CHECK(decoded(packed).values == image_bytes{255, 254, 253, 1, 2, 3, 40, 50, 60});
  }
  SUBCASE("alpha is dropped") {
    CHECK(decoded(make_png(2, 1, {9, 8, 7, 0, 6, 5, 4, 255}, {.colour = PNG_COLOR_TYPE_RGBA})).values ==
          image_bytes{9, 8, 7, 6, 5, 4});
    CHECK(decoded(make_png(2, 1, {9, 0, 8, 77}, {.colour = PNG_COLOR_TYPE_GRAY_ALPHA})).values == image_bytes{9, 8});
    auto transparent = [](png_structp png, png_infop info) {
      auto key = png_color_16{0, 9, 8, 7, 9};
      png_set_tRNS(png, info, nullptr, 0, &key);
    };
    CHECK(decoded(make_png(2, 1, {9, 8, 7, 6, 5, 4}, {.more = transparent})).values == image_bytes{9, 8, 7, 6, 5, 4});
    CHECK(decoded(make_png(2, 1, {9, 8}, {.colour = PNG_COLOR_TYPE_GRAY, .more = transparent})).values ==
          image_bytes{9, 8});
  }
  SUBCASE("gamma, profiles and texts change nothing, and may be wrong") {
    auto more = [](png_structp png, png_infop info) { png_set_gAMA(png, info, 1.0 / 1.8); };
    auto file = make_png(1, 1, {100, 150, 200}, {.more = more});
    for (const auto* kind : {"iCCP", "zTXt", "sRGB", "eXIf"})
      file = with_png_chunk(file, kind, {1, 2, 3});
    CHECK(decoded(file).values == image_bytes{100, 150, 200});
    // But not one that is required to understand the image.
    CHECK(refusal(with_png_chunk(file, "NEWS", {1, 2, 3})).code == errc::damaged);
  }
}

TEST_CASE("a JPEG image has about the values that were written, in every form") {
  // A slope, which survives compression.
  image_bytes slope;
  for (int y = 0; y < 30; ++y)
    for (int x = 0; x < 41; ++x)
      for (int c = 0; c < 3; ++c)
        slope.push_back(static_cast<std::uint8_t>(40 + 3 * x + y + 20 * c));
  for (auto progressive : {false, true})
    for (auto [horizontal, vertical] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
      auto image = decoded(
          make_jpeg(41, 30, slope, {.progressive = progressive, .horizontal = horizontal, .vertical = vertical}));
      REQUIRE(image.width == 41);
      REQUIRE(image.height == 30);
      REQUIRE(image.channels == 3);
      int worst = 0;
      for (std::size_t i = 0; i < slope.size(); ++i)
        worst = std::max(worst, std::abs(int{image.values[i]} - int{slope[i]}));
      CHECK(worst <= 8);
    }
  auto grey = decoded(make_jpeg(8, 8, image_bytes(64, 128), {.colour = JCS_GRAYSCALE}));
  CHECK(grey.channels == 1);
  CHECK(grey.values == image_bytes(64, 128));
}

TEST_CASE("a truncated image is an error, wherever it ends") {
  for (const auto& file : {
           make_png(20, 20, image_noise(20, 20, 3)),
           make_png(20, 20, image_noise(20, 20, 3), {.interlace = PNG_INTERLACE_ADAM7}),
           make_jpeg(20, 20, image_noise(20, 20, 3)),
           make_jpeg(20, 20, image_noise(20, 20, 3), {.progressive = true}),
           make_jpeg(20, 20, image_noise(20, 20, 1), {.colour = JCS_GRAYSCALE}),
       }) {
    CHECK(refusal(file) == error{});
    for (std::size_t size = 0; size < file.size(); ++size) {
      auto why = refusal({file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size)});
      REQUIRE_MESSAGE(why.code == errc::damaged, size);
      REQUIRE_FALSE(why.message.empty());
    }
  }
}

TEST_CASE("a changed bit of a PNG image is an error") {
  auto file = make_png(9, 7, image_noise(9, 7, 3));
  for (std::size_t i = 0; i < 8 * file.size(); ++i) {
    auto changed = file;
    changed[i / 8] ^= static_cast<std::uint8_t>(1U << (i % 8));
    CHECK_MESSAGE(refusal(changed).code != errc::none, i);
  }
}

TEST_CASE("changed bytes of a JPEG image are an error or another image, and nothing else") {
  std::size_t found = 0;
  for (auto progressive : {false, true}) {
    const auto file = make_jpeg(33, 17, image_noise(33, 17, 3), {.progressive = progressive});
    const auto places = noise(8000, 7);
    for (std::size_t i = 0; i < places.size(); i += 4) {
      auto changed = file;
      changed[(places[i] * 256U + places[i + 1]) % file.size()] = places[i + 2];
      pixels image;
      auto done = decode_image(encoded(changed), image);
      if (done)
        CHECK(image.values.size() == std::size_t{image.width} * image.height * image.channels);
      else
        ++found;
    }
  }
  CHECK(found > 100);
}

TEST_CASE("an image that is too large is refused before memory is allocated for it") {
  auto png = make_png(1, 1, {1, 2, 3});
  auto jpeg = make_jpeg(8, 8, image_noise(8, 8, 3));
  for (const auto& file :
       {with_png_size(png, 16385, 1), with_png_size(png, 1, 1U << 30U), with_png_size(png, 16384, 16384),
        with_jpeg_size(jpeg, 16385, 8), with_jpeg_size(jpeg, 8, 65500), with_jpeg_size(jpeg, 16384, 16384)}) {
    auto why = refusal(file);
    CHECK(why.code == errc::invalid_argument);
    CHECK_MESSAGE(why.message.find("at most 16384 per side and 134217728 in total") != std::string::npos, why.message);
  }
  // At the bound, the data is missing.
  CHECK(refusal(with_png_size(png, 16384, 1)).code == errc::damaged);
  CHECK(refusal(with_png_size(png, 0, 1)).code == errc::damaged);
}

TEST_CASE("what is no image for training says so") {
  auto cmyk = refusal(make_jpeg(8, 8, image_noise(8, 8, 4), {.colour = JCS_CMYK, .horizontal = 1, .vertical = 1}));
  CHECK(cmyk.code == errc::invalid_argument);
  CHECK_MESSAGE(cmyk.message.find("4 components (CMYK") != std::string::npos, cmyk.message);
  CHECK(refusal({}).message == "the file is empty");
  CHECK(refusal(from_text("GIF89a")).message == "neither a JPEG nor a PNG image by its first bytes");
  auto header = refusal({0xff, 0xd8, 0xff, 0xd9});
  CHECK(header.code == errc::damaged);
  CHECK_MESSAGE(header.message.find("damaged JPEG image: ") == 0, header.message);
}

TEST_CASE("an image with endless scans is refused") {
  const auto file = make_jpeg(8, 8, noise(192), {.separate = true});
  const std::array<std::uint8_t, 2> mark{0xff, 0xda};
  const auto last = std::find_end(file.begin(), file.end(), mark.begin(), mark.end());
  auto repeated = [&](int times) {
    image_bytes result(file.begin(), last);
    for (int i = 0; i < times; ++i)
      result.insert(result.end(), last, file.end() - 2);
    result.insert(result.end(), {0xff, 0xd9});
    return result;
  };
  CHECK(decoded(repeated(400)).values == decoded(file).values);
  CHECK(refusal(repeated(600)) == error{errc::damaged, "damaged JPEG image: more than 500 scans"});
}

TEST_CASE("this host's decoders have a digest") {
  auto digest = decoder_digest();
  REQUIRE_MESSAGE(digest.has_value(), digest.error().message);
  CHECK(digest->size() == 32);
  CHECK(decoder_digest() == digest);
}

TEST_CASE("scaled images have the values that Pillow gives") {
  auto by = [](std::uint32_t width, std::uint32_t height, std::uint32_t channels, image_fit fit) {
    return image_options{.height = height, .width = width, .channels = channels, .fit = fit};
  };
  CHECK(shaped(7, 5, noise(35), by(3, 2, 1, image_fit::stretch)) == image_bytes{105, 116, 136, 108, 112, 141});
  CHECK(shaped(7, 5, noise(35), by(10, 6, 1, image_fit::stretch)) ==
        image_bytes{60, 79,  103, 127, 162, 121, 16,  74,  141, 198, 122, 69,  59,  148, 115, 90,  87,  124, 170, 210,
                    94, 124, 160, 194, 118, 100, 146, 143, 133, 121, 46,  105, 156, 162, 97,  102, 175, 151, 111, 73,
                    36, 51,  77,  118, 66,  79,  158, 170, 140, 98,  67,  136, 204, 236, 113, 59,  93,  210, 183, 99});
  // To 6 x 3, of which columns 2 and 3 are kept.
  CHECK(shaped(9, 4, noise(108), by(2, 3, 3, image_fit::crop)) ==
        image_bytes{161, 156, 123, 172, 191, 106, 133, 181, 222, 111, 121, 173, 156, 168, 116, 142, 140, 99});
  // To grey, then to 3 x 4, of which the first three rows are kept.
  CHECK(shaped(5, 8, noise(120), by(3, 3, 1, image_fit::crop)) ==
        image_bytes{130, 111, 129, 138, 150, 117, 150, 127, 147});
}

TEST_CASE("an image of the right size keeps its values, and grey and colour become each other") {
  for (auto fit : {image_fit::crop, image_fit::stretch, image_fit::exact}) {
    auto options = image_options{.height = 3, .width = 4, .channels = 3, .fit = fit};
    CHECK(shaped(4, 3, noise(36), options) == noise(36));
    auto grey = noise(12);
    image_bytes tripled;
    for (auto value : grey)
      tripled.insert(tripled.end(), 3, value);
    CHECK(shaped(4, 3, grey, options) == tripled);
  }
  auto options = image_options{.height = 1, .width = 5, .channels = 1, .fit = image_fit::exact};
  CHECK(shaped(5, 1, {255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255, 7, 7, 7}, options) ==
        image_bytes{76, 150, 29, 255, 7});
}

TEST_CASE("an even image stays even, however it is scaled") {
  for (std::uint32_t value : {0U, 1U, 128U, 254U, 255U})
    for (auto [width, height] : {std::pair{1U, 1U}, {1U, 16384U}, {16384U, 1U}, {3U, 700U}, {64U, 64U}})
      for (auto fit : {image_fit::crop, image_fit::stretch}) {
        auto byte = static_cast<std::uint8_t>(value);
        auto all = shaped(width, height, image_bytes(std::size_t{width} * height, byte),
                          {.height = 5, .width = 9, .channels = 1, .fit = fit});
        CHECK(all == image_bytes(45, byte));
      }
}

TEST_CASE("an image of another size is refused where sizes must be exact") {
  auto image = pixels{4, 3, 1, noise(12)};
  image_bytes out(12);
  auto done = image_shaper{{.height = 4, .width = 3, .channels = 1, .fit = image_fit::exact}}.shape(image, out);
  REQUIRE_FALSE(done.has_value());
  CHECK(done.error() == error{errc::invalid_argument, "4 x 3 pixels (width x height), expected 3 x 4"});
}

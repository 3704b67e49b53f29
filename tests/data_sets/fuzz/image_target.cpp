#include "images/decode.hpp"
#include "images/resize.hpp"

#include <array>
#include <cstdlib>

// A few bytes can say that 2^27 pixels follow. Fewer are decoded here, so that the fuzzer gets somewhere.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe::data;
  pixels image;
  auto done = decode_image(std::as_bytes(std::span{data, size}), image, std::uint64_t{1} << 16U);
  if (!done)
    return done.error().message.empty() ? std::abort(), 0 : 0;
  if (image.values.size() != image.row_bytes() * image.height || (image.channels != 1 && image.channels != 3))
    std::abort();
  for (auto fit : {image_fit::crop, image_fit::stretch}) {
    std::array<std::uint8_t, 8 * 5 * 3> out;
    if (!image_shaper{{.height = 8, .width = 5, .channels = 3, .fit = fit}}.shape(image, out))
      std::abort();
    unsigned sum = 0;
    for (auto byte : out)
      sum += byte;
    static volatile unsigned keep;
    keep = sum;
  }
  return 0;
}

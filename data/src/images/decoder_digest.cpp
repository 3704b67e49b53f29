#include "images/decode.hpp"

#include "content_hash.hpp"

#include <fmt/format.h>
#include <string_view>
#include <vector>

namespace troupe::data {

namespace {

// 17 x 15 pixels of noise on a slope, written by libjpeg-turbo 2.1.5 at quality 20. The sizes are odd, so that there
// are edges, and each image takes another way through the smooth upsampling.
constexpr std::string_view both_halved = // 4:2:0
    "ffd8ffdb004300281c1e231e19282321232d2b28303c64413c37373c7b585d4964918099968f808c8aa0b4e6c3a0aadaad8a8cc8ffcb"
    "daeef5ffffff9bc1fffffffaffe6fdfff8ffdb0043012b2d2d3c353c76414176f8a58ca5f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8"
    "f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8ffc0001108000f001103012200021101031101ffc400"
    "1800000301010000000000000000000000000001040203ffc40023100001030302070000000000000000000001000203111231042113"
    "14537181a1f0ffc4001501010100000000000000000000000000000001ffc40020110002010109000000000000000000000000010211"
    "121321233132515291ffda000c03010002110311003f00ce9e0a52bb2a249990c62d34bb071ed274a2305ada9763b13851da090edadc"
    "540a26fd3041522ad48ebcfcfd51f78425c36a15cbec4be7c2f0ffd9";
constexpr std::string_view width_halved = // 4:2:2
    "ffd8ffdb004300281c1e231e19282321232d2b28303c64413c37373c7b585d4964918099968f808c8aa0b4e6c3a0aadaad8a8cc8ffcb"
    "daeef5ffffff9bc1fffffffaffe6fdfff8ffdb0043012b2d2d3c353c76414176f8a58ca5f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8"
    "f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8ffc0001108000f001103012100021101031101ffc400"
    "17000003010000000000000000000000000000020403ffc4002310000104010109000000000000000000000100020311312104121451"
    "526271a2d2ffc40017010101010100000000000000000000000000020104ffc400231100020200030900000000000000000000000102"
    "031112511314212241617191f0ffda000c03010002110311003f005d9e01a0216f3ca2188b23a3257349349e5ea209b64dc4761f4f94"
    "2ac2cd7ef66ed25a954971422b2e35e342a47b0b9c0b9ce379379514f1e7904f2d7e47dd1d2855bc57dce6c59fffd9";
constexpr std::string_view height_halved = // 4:4:0
    "ffd8ffdb004300281c1e231e19282321232d2b28303c64413c37373c7b585d4964918099968f808c8aa0b4e6c3a0aadaad8a8cc8ffcb"
    "daeef5ffffff9bc1fffffffaffe6fdfff8ffdb0043012b2d2d3c353c76414176f8a58ca5f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8"
    "f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8ffc0001108000f001103011200021101031101ffc400"
    "17000003010000000000000000000000000000020401ffc4002310000103030305010000000000000000000100031102122104415213"
    "142331a1a2ffc400160101010100000000000000000000000000010203ffc4001f110002010305010000000000000000000001020013"
    "21310311125161a1ffda000c03010002110311003f005d3e9e40990a8aeb2d5170a33200ce11cc1b28de4a866b098fbe1964d2d9f20d"
    "bd47c852c5e40937099cecac69b65a68e51066f1fba7b98fca3a23884504ebe42bf93fffd9";

std::vector<std::byte> from_hexadecimal(std::string_view digits) {
  auto value = [](char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; };
  std::vector<std::byte> result(digits.size() / 2);
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i] = static_cast<std::byte>(16 * value(digits[2 * i]) + value(digits[2 * i + 1]));
  return result;
}

} // namespace

expected<std::string> decoder_digest() {
  content_hash hash;
  pixels image;
  for (auto encoded : {both_halved, width_halved, height_halved}) {
    auto decoded = decode_image(from_hexadecimal(encoded), image);
    if (!decoded)
      return fail(errc::internal, fmt::format("libjpeg cannot decode a built-in image: {}", decoded.error().message));
    hash.add(std::as_bytes(std::span{image.values}));
  }
  return hash.digest();
}

} // namespace troupe::data

// Runs the manifest parser on libFuzzer's inputs: it returns a manifest or an error, and an accepted manifest can be
// written and read again. The first byte says whether the rest is a file as is, or a message that gets a matching
// frame; otherwise no mutation would pass the checksum.
#include "memory_disk.hpp"

#include <troupe/serialization/checkpoint/manifest.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

using namespace troupe;
using namespace troupe::serialization;

namespace {

std::vector<std::byte> framed(std::span<const std::byte> message) {
  auto result = std::vector<std::byte>(24 + message.size());
  std::memcpy(result.data(), "TRPSNAP\n", 8);
  std::memcpy(result.data() + 8, &snapshot_format_version, 4);
  auto length = std::uint64_t{message.size()};
  std::memcpy(result.data() + 16, &length, 8);
  std::ranges::copy(message, result.begin() + 24);
  auto checksum = xxh3(result);
  auto bytes = std::as_bytes(std::span{&checksum, 1});
  result.insert(result.begin() + 24, bytes.begin(), bytes.end());
  return result;
}

void require(bool good) {
  if (!good)
    std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0)
    return 0;
  auto rest = std::as_bytes(std::span{data + 1, size - 1});
  auto bytes = data[0] % 2 == 0 ? std::vector<std::byte>{rest.begin(), rest.end()} : framed(rest);
  auto content = parse_manifest(bytes, "fuzzed");
  if (!content) {
    require(content.error().code == errc::damaged || content.error().code == errc::unsupported_version);
    return 0;
  }
  auto disk = memory_disk{};
  require(write_manifest("/manifest", *content, disk).has_value());
  auto again = read_manifest("/manifest", disk);
  require(again.has_value());
  // NaN equals nothing.
  for (auto* metrics : {&content->metrics, &again->metrics})
    std::erase_if(*metrics, [](const auto& x) { return std::isnan(x.second); });
  require(*again == *content);
  return 0;
}

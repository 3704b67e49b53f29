#include <troupe/data/idx.hpp>

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto read = troupe::data::parse_idx(std::as_bytes(std::span{data, size}), nullptr, "input", "x");
  if (!read)
    return read.error().message.empty() ? std::abort(), 0 : 0;
  // All promised bytes exist.
  if (read->bytes.size() != read->samples() * read->spec.size_bytes())
    std::abort();
  unsigned sum = 0;
  for (auto byte : read->bytes)
    sum += std::to_integer<unsigned>(byte);
  static volatile unsigned keep;
  keep = sum;
  return 0;
}

#include <troupe/serialization/files/file_digest.hpp>

#include <troupe/serialization/files/digest.hpp>

#include <cstdint>
#include <fmt/format.h>
#include <fstream>
#include <span>
#include <system_error>
#include <vector>

namespace troupe::serialization {

expected<std::string> describe_file(const std::filesystem::path& path) {
  std::error_code why;
  if (!std::filesystem::exists(path, why))
    return fail(errc::not_found, fmt::format("{} does not exist", path.string()));
  auto in = std::ifstream{path, std::ios::binary};
  xxh3_stream hash;
  std::vector<char> block(1 << 20);
  std::uint64_t size_bytes = 0;
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())) || in.gcount() > 0) {
    auto read = std::as_bytes(std::span{block}).first(static_cast<std::size_t>(in.gcount()));
    hash.update(read);
    size_bytes += read.size();
  }
  if (!in.eof())
    return fail(errc::io_error, fmt::format("{} cannot be read", path.string()));
  return fmt::format("{} bytes, XXH3 {:016x}", size_bytes, hash.digest());
}

} // namespace troupe::serialization

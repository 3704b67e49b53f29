#include "net/members/base64.hpp"

#include <openssl/evp.h>

#include <algorithm>

namespace troupe::runtime {

namespace {

constexpr std::size_t bytes_of_group = 3;
constexpr std::size_t letters_of_group = 4;

const unsigned char* raw(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

} // namespace

std::string to_base64(std::string_view bytes) {
  // OpenSSL writes a zero behind it.
  auto result = std::string((bytes.size() + bytes_of_group - 1) / bytes_of_group * letters_of_group + 1, '\0');
  const auto size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(result.data()), raw(bytes), static_cast<int>(bytes.size()));
  result.resize(static_cast<std::size_t>(size));
  return result;
}

expected<std::string> from_base64(std::string_view text) {
  auto result = std::string(text.size() / letters_of_group * bytes_of_group, '\0');
  const auto size =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(result.data()), raw(text), static_cast<int>(text.size()));
  if (size < 0 || text.size() % letters_of_group != 0)
    return fail(errc::invalid_argument, "not base64");
  // OpenSSL does not tell how many of the last bytes are padding.
  const auto padding =
      static_cast<std::size_t>(std::count(text.end() - std::min<std::ptrdiff_t>(2, std::ssize(text)), text.end(), '='));
  result.resize(static_cast<std::size_t>(size) - padding);
  return result;
}

} // namespace troupe::runtime

#pragma once

#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace troupe::data {

/// A member of a tar archive that is a file, or a link.
struct tar_member {
  enum class form : std::uint8_t { file, link, other };

  std::string name;
  form kind = form::file;
  /// Of its header, and of its content; the content is empty unless it is a file.
  std::uint64_t header_offset = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// Calls `visit` for each member in order, but for directories. `file` is the name used in messages. Reads the headers
/// only: ustar, GNU (long names, sizes of 256 bits), pax (`path`, `size`) and the form before them. Fails with
/// `errc::damaged`, naming file and byte, for anything but a whole archive, and as `visit` does.
[[nodiscard]] expected<void> read_tar(std::span<const std::byte> archive, const std::string& file,
                                      const std::function<expected<void>(tar_member)>& visit);

} // namespace troupe::data

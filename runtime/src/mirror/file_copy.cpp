#include "mirror/file_copy.hpp"

#include <troupe/serialization/files/durable_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe::runtime {

expected<void> copy_file(const std::filesystem::path& from, const std::filesystem::path& to,
                         const std::stop_token& stop) {
  TROUPE_TRY(auto source, serialization::local_files().open(from));
  TROUPE_TRY(const auto size_bytes, source->size_bytes());
  return serialization::write_file_durably(to, [&](const serialization::text_sink& sink) -> expected<void> {
    std::vector<std::byte> buffer(std::min(size_bytes, std::uint64_t{1} << 20));
    for (std::uint64_t done = 0; done < size_bytes;) {
      if (stop.stop_requested())
        return fail(errc::aborted, fmt::format("copying {} was given up", from.string()));
      const auto piece = std::span{buffer}.first(std::min<std::uint64_t>(buffer.size(), size_bytes - done));
      TROUPE_TRY(source->read_at(done, piece));
      TROUPE_TRY(sink({reinterpret_cast<const char*>(piece.data()), piece.size()}));
      done += piece.size();
    }
    return {};
  });
}

} // namespace troupe::runtime

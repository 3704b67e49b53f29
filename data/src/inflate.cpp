#include "inflate.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <new>
#include <zlib.h>

namespace troupe::data {

namespace {

/// Owns zlib's state.
class inflater {
 public:
  inflater() {
    // 16 selects gzip only.
    if (::inflateInit2(&stream_, 16 + MAX_WBITS) != Z_OK)
      throw std::bad_alloc{};
  }
  inflater(const inflater&) = delete;
  inflater& operator=(const inflater&) = delete;
  ~inflater() { ::inflateEnd(&stream_); }

  [[nodiscard]] z_stream& stream() noexcept { return stream_; }

 private:
  z_stream stream_{};
};

uInt piece_of(std::size_t bytes) {
  return static_cast<uInt>(std::min<std::size_t>(bytes, std::numeric_limits<uInt>::max()));
}

} // namespace

bool is_gzip(std::span<const std::byte> content) noexcept {
  return content.size() >= 2 && content[0] == std::byte{0x1f} && content[1] == std::byte{0x8b};
}

expected<inflated> inflate_gzip(std::span<const std::byte> packed, std::size_t limit_bytes, const std::string& file) {
  inflater engine;
  auto& stream = engine.stream();
  inflated result;
  std::size_t filled = 0;
  std::size_t consumed = 0;
  constexpr std::size_t first_bytes = std::size_t{1} << 16u;
  for (;;) {
    if (filled == result.bytes.size())
      // One byte more than the limit shows whether the output exceeds it.
      result.bytes.resize(
          std::min(std::max(filled * 2, first_bytes), limit_bytes == SIZE_MAX ? SIZE_MAX : limit_bytes + 1));
    auto in = piece_of(packed.size() - consumed);
    auto out = piece_of(result.bytes.size() - filled);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data() + consumed));
    stream.avail_in = in;
    stream.next_out = reinterpret_cast<Bytef*>(result.bytes.data() + filled);
    stream.avail_out = out;
    auto code = ::inflate(&stream, Z_NO_FLUSH);
    consumed += in - stream.avail_in;
    filled += out - stream.avail_out;
    if (filled > limit_bytes) {
      result.bytes.resize(limit_bytes);
      return result;
    }
    if (code == Z_STREAM_END) {
      if (is_gzip(packed.subspan(consumed)) && ::inflateReset(&stream) == Z_OK)
        continue;
      if (consumed < packed.size())
        return fail(errc::damaged, fmt::format("{}: {} bytes follow the gzip stream: copy the file again", file,
                                               packed.size() - consumed));
      result.bytes.resize(filled);
      result.complete = true;
      return result;
    }
    // zlib has the whole input, so no progress means that the input is incomplete.
    if (code == Z_BUF_ERROR || (code == Z_OK && stream.avail_in == 0 && stream.avail_out > 0))
      return fail(errc::damaged, fmt::format("{}: the gzip stream is truncated after {} bytes: copy the file again",
                                             file, packed.size()));
    if (code != Z_OK)
      return fail(errc::damaged, fmt::format("{}: invalid gzip stream at byte {} ({}): copy the file again", file,
                                             consumed, stream.msg != nullptr ? stream.msg : "zlib error"));
  }
}

} // namespace troupe::data

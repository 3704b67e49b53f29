#include "images/tar_archive.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>
#include <optional>
#include <string_view>
#include <utility>

namespace troupe::data {

namespace {

constexpr std::size_t block_bytes = 512;
/// The checksum counts its own field as eight blanks.
constexpr unsigned blank_checksum = 8U * ' ';
constexpr std::uint64_t largest_name_record = 1U << 20U;

/// One header block, by the fields of POSIX.
class header {
 public:
  explicit header(std::span<const std::byte> block) : text_(reinterpret_cast<const char*>(block.data()), block_bytes) {}

  [[nodiscard]] std::string_view field(std::size_t offset, std::size_t size) const {
    auto result = text_.substr(offset, size);
    return result.substr(0, std::min(result.find('\0'), size));
  }

  [[nodiscard]] bool is_zero() const { return text_.find_first_not_of('\0') == std::string_view::npos; }
  [[nodiscard]] char type() const { return text_[156]; }
  [[nodiscard]] std::optional<std::uint64_t> size() const { return number(124, 12); }

  [[nodiscard]] bool checksum_holds() const {
    std::uint64_t unsigned_sum = blank_checksum;
    std::int64_t signed_sum = blank_checksum; // of some old programs
    for (std::size_t i = 0; i < block_bytes; ++i) {
      if (i >= 148 && i < 156)
        continue;
      unsigned_sum += static_cast<unsigned char>(text_[i]);
      signed_sum += static_cast<signed char>(text_[i]);
    }
    auto stored = number(148, 8);
    return stored && (*stored == unsigned_sum || static_cast<std::int64_t>(*stored) == signed_sum);
  }

  [[nodiscard]] std::string name() const {
    auto name = std::string{field(0, 100)};
    const auto is_posix = text_.substr(257, 6) == std::string_view{"ustar\0", 6};
    auto prefix = is_posix ? field(345, 155) : std::string_view{};
    return prefix.empty() ? name : fmt::format("{}/{}", prefix, name);
  }

 private:
  /// Octal digits, or 256-bit digits after a first byte of 0x80.
  [[nodiscard]] std::optional<std::uint64_t> number(std::size_t offset, std::size_t size) const {
    auto digits = text_.substr(offset, size);
    std::uint64_t result = 0;
    if (static_cast<unsigned char>(digits.front()) == 0x80) {
      for (auto digit : digits.substr(1)) {
        if (result >> 56U != 0)
          return std::nullopt;
        result = result << 8U | static_cast<unsigned char>(digit);
      }
      return result;
    }
    const auto first = std::min(digits.find_first_not_of(' '), size);
    const auto end = std::min(digits.find_first_not_of("01234567", first), size);
    if (digits.substr(end).find_first_not_of(std::string_view{" \0", 2}) != std::string_view::npos)
      return std::nullopt;
    for (auto digit : digits.substr(first, end - first)) // at most 12 digits
      result = result << 3U | static_cast<unsigned>(digit - '0');
    return result;
  }

  std::string_view text_;
};

/// What a header says about the one after it.
struct overrides {
  std::optional<std::string> name;
  std::optional<std::uint64_t> size;

  [[nodiscard]] bool empty() const { return !name && !size; }
};

class tar_reader {
 public:
  tar_reader(std::span<const std::byte> archive, const std::string& file,
             const std::function<expected<void>(tar_member)>& visit)
      : archive_(archive), file_(file), visit_(visit) {}

  expected<void> read() {
    if (archive_.size() >= 2 && archive_[0] == std::byte{0x1f} && archive_[1] == std::byte{0x8b})
      return damaged(0, "compressed with gzip: unpack it, members are read at random places");
    for (;;) {
      TROUPE_TRY(auto head, next_header());
      if (!head)
        return {};
      TROUPE_TRY(read_entry(*head));
    }
  }

 private:
  [[nodiscard]] tl::unexpected<error> damaged(std::uint64_t offset, std::string_view what) const {
    return fail(errc::damaged, fmt::format("{}: byte {}: {}", file_, offset, what));
  }

  /// The next header; null at the end of the archive.
  expected<std::optional<header>> next_header() {
    at_ = next_;
    if (archive_.size() - at_ < block_bytes)
      return damaged(at_, at_ == 0 ? fmt::format("not a tar archive: it has {} bytes", archive_.size())
                                   : "truncated: the archive has no end mark");
    auto result = header{archive_.subspan(at_, block_bytes)};
    next_ = at_ + block_bytes;
    if (result.is_zero()) {
      TROUPE_TRY(check_end());
      return std::nullopt;
    }
    if (!result.checksum_holds())
      return damaged(at_, at_ == 0 ? "not a tar archive: no header with a valid checksum"
                                   : "damaged: a header with an invalid checksum");
    return result;
  }

  /// The end mark is two blocks of zeros, and nothing but zeros may follow.
  [[nodiscard]] expected<void> check_end() const {
    if (!pending_.empty())
      return damaged(at_, "damaged: a long name or a size without its member");
    if (archive_.size() - next_ < block_bytes)
      return damaged(at_, "truncated: the archive has half an end mark");
    auto rest = archive_.subspan(next_);
    auto place = std::ranges::find_if(rest, [](std::byte x) { return x != std::byte{0}; });
    if (place != rest.end())
      return damaged(next_ + static_cast<std::uint64_t>(place - rest.begin()),
                     "data after the end mark: archives that were joined are not read, list them separately");
    return {};
  }

  expected<void> read_entry(const header& head) {
    auto own_size = head.size();
    if (!own_size)
      return damaged(at_, "damaged: a header with an invalid size");
    switch (head.type()) {
    case 'L':
    case 'K':
    case 'x':
    case 'g':
      return read_record(head.type(), *own_size);
    default:
      return read_member(head, *own_size);
    }
  }

  /// Moves behind content of this size.
  expected<std::span<const std::byte>> take(std::uint64_t bytes) {
    const auto available = archive_.size() - next_;
    if (bytes > available)
      return damaged(at_, fmt::format("truncated: a member of {} bytes, of which {} are there", bytes, available));
    auto content = archive_.subspan(next_, bytes);
    const auto padded = (bytes + block_bytes - 1) / block_bytes * block_bytes;
    next_ += std::min<std::uint64_t>(padded, available);
    return content;
  }

  expected<void> read_record(char type, std::uint64_t bytes) {
    if (bytes > largest_name_record)
      return damaged(at_, fmt::format("damaged: a record of {} bytes for a name", bytes));
    TROUPE_TRY(auto content, take(bytes));
    auto text = std::string_view{reinterpret_cast<const char*>(content.data()), content.size()};
    if (type == 'L')
      pending_.name = std::string{text.substr(0, text.find('\0'))};
    else if (type != 'K')
      return read_pax(text, type == 'g');
    return {};
  }

  /// Lines of the form "LENGTH KEY=VALUE\n", in which the length counts all of it.
  expected<void> read_pax(std::string_view text, bool is_global) {
    while (!text.empty()) {
      std::size_t length = 0;
      auto [end, why] = std::from_chars(text.data(), text.data() + text.size(), length);
      const auto begin = static_cast<std::size_t>(end - text.data()) + 1;
      if (why != std::errc{} || length > text.size() || begin >= length || *end != ' ' || text[length - 1] != '\n')
        return damaged(at_, "damaged: an invalid pax record");
      auto record = text.substr(begin, length - 1 - begin);
      const auto equals = record.find('=');
      if (equals == std::string_view::npos)
        return damaged(at_, "damaged: a pax record without a value");
      TROUPE_TRY(apply(record.substr(0, equals), record.substr(equals + 1), is_global));
      text.remove_prefix(length);
    }
    return {};
  }

  expected<void> apply(std::string_view key, std::string_view value, bool is_global) {
    if (key.starts_with("GNU.sparse."))
      return damaged(at_, "a sparse file: write the archive without --sparse");
    if (key != "path" && key != "size")
      return {};
    if (is_global)
      return damaged(at_, fmt::format("a global pax header with a {}, which no single member can have", key));
    if (key == "path") {
      pending_.name = std::string{value};
      return {};
    }
    std::uint64_t size = 0;
    auto [end, why] = std::from_chars(value.data(), value.data() + value.size(), size);
    if (why != std::errc{} || end != value.data() + value.size())
      return damaged(at_, "damaged: a pax record with an invalid size");
    pending_.size = size;
    return {};
  }

  expected<void> read_member(const header& head, std::uint64_t own_size) {
    tar_member member;
    member.header_offset = at_;
    member.name = pending_.name ? std::move(*pending_.name) : head.name();
    auto size = pending_.size.value_or(own_size);
    pending_ = {};
    const auto type = head.type();
    if (type == 'S' || type == 'M')
      return damaged(at_, "a sparse file, or one of several volumes: write the archive without these options");
    // The sizes of links, devices and directories count no content.
    if (type >= '1' && type <= '6')
      size = 0;
    member.offset = next_;
    TROUPE_TRY(auto content, take(size));
    member.bytes = content.size();
    if (type == '5' || (type == '\0' && member.name.ends_with('/')))
      return {};
    const bool is_file = type == '0' || type == '\0' || type == '7';
    const bool is_link = type == '1' || type == '2';
    member.kind = is_file ? tar_member::form::file : is_link ? tar_member::form::link : tar_member::form::other;
    return visit_(std::move(member));
  }

  std::span<const std::byte> archive_;
  const std::string& file_;
  const std::function<expected<void>(tar_member)>& visit_;
  /// The header that is being read, for messages, and the byte after what has been read.
  std::uint64_t at_ = 0;
  std::uint64_t next_ = 0;
  overrides pending_;
};

} // namespace

expected<void> read_tar(std::span<const std::byte> archive, const std::string& file,
                        const std::function<expected<void>(tar_member)>& visit) {
  return tar_reader{archive, file, visit}.read();
}

} // namespace troupe::data

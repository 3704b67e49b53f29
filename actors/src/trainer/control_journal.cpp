#include "trainer/control_journal.hpp"

#include <troupe/messages/type_ids.hpp>
#include <troupe/serialization/files/digest.hpp>
#include <troupe/serialization/files/file_system.hpp>

#include <caf/actor_system.hpp>
#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>
#include <caf/byte_buffer.hpp>
#include <fmt/format.h>

#include <cstdio>
#include <fcntl.h>
#include <span>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace troupe::actors {

namespace {

/// The first line of a file has this size. The content follows.
constexpr std::size_t header_size = 128;

/// Files grow by so much, and never shrink: writing one in place changes nothing but its blocks.
constexpr std::size_t block = 4096;

constexpr std::array slot_names{".journal-0", ".journal-1"};

constexpr auto header_format = "troupe journal, protocol {}, number {}, claim {}, {} bytes, digest {:016x}";

std::optional<std::string> read_at(int fd, std::size_t size, std::size_t offset) {
  auto result = std::string(size, '\0');
  const auto got = ::pread(fd, result.data(), size, static_cast<off_t>(offset));
  return got == static_cast<ssize_t>(size) ? std::optional{std::move(result)} : std::nullopt;
}

std::span<const std::byte> bytes_of(const caf::byte_buffer& buffer) {
  return std::as_bytes(std::span{buffer.data(), buffer.size()});
}

error io_failure(std::string_view what, const std::filesystem::path& path) {
  auto reason = system_error(fmt::format("cannot {} {}", what, path.string()));
  reason.code = errc::io_error;
  return reason;
}

} // namespace

bool control_journal::exists(const std::filesystem::path& directory) {
  auto ignored = std::error_code{};
  return std::filesystem::exists(directory / slot_names[0], ignored) ||
         std::filesystem::exists(directory / slot_names[1], ignored);
}

control_journal::control_journal(caf::actor_system& system, const std::filesystem::path& directory)
    : system_(&system), slots_{slot{directory / slot_names[0]}, slot{directory / slot_names[1]}} {}

control_journal::~control_journal() {
  close();
}

void control_journal::close() noexcept {
  for (auto& each : slots_)
    if (const auto fd = std::exchange(each.fd, -1); fd >= 0)
      ::close(fd);
}

std::optional<control_journal::header> control_journal::read_header(const slot& from) {
  const auto fd = ::open(from.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return std::nullopt;
  const auto line = read_at(fd, header_size, 0);
  ::close(fd);
  header result;
  unsigned version = 0;
  static_assert(sizeof(unsigned long) == sizeof(std::uint64_t));
  // NOLINTNEXTLINE(cert-err34-c): numbers that are too large make a digest that is wrong.
  if (!line || std::sscanf(line->c_str(), "troupe journal, protocol %u, number %lu, claim %lu, %lu bytes, digest %lx",
                           &version, &result.sequence, &result.claim, &result.size, &result.digest) != 5)
    return std::nullopt;
  return version == protocol_version ? std::optional{result} : std::nullopt;
}

expected<std::optional<run_journal>> control_journal::read() {
  std::optional<run_journal> result;
  auto has_damaged = false;
  for (const auto& each : slots_) {
    const auto head = read_header(each);
    if (!head || (result && head->sequence <= sequence_))
      continue;
    const auto fd = ::open(each.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
      return fail(io_failure("open", each.path));
    struct stat status {};
    const auto has_size = ::fstat(fd, &status) == 0 && status.st_size >= static_cast<off_t>(header_size) &&
                          head->size <= static_cast<std::uint64_t>(status.st_size) - header_size;
    const auto text = has_size ? read_at(fd, head->size, header_size) : std::nullopt;
    ::close(fd);
    const auto is_whole = text && serialization::xxh3(serialization::bytes_of(*text)) == head->digest;
    run_journal content;
    auto source = caf::binary_deserializer{*system_, is_whole ? std::as_bytes(std::span{text->data(), text->size()})
                                                              : std::span<const std::byte>{}};
    if (!is_whole || !source.apply(content)) {
      has_damaged = true;
      continue;
    }
    sequence_ = head->sequence;
    result = std::move(content);
  }
  // A crash while one was written leaves the other.
  if (!result && has_damaged)
    return fail(errc::damaged, "the run's journal " + slots_[0].path.string() + " is damaged");
  return result;
}

expected<void> control_journal::write(const run_journal& content) {
  for (const auto& each : slots_)
    if (const auto head = read_header(each); head && head->claim > content.claim.number)
      return fail(errc::superseded, "another driver has taken the run over");
  caf::byte_buffer body;
  auto sink = caf::binary_serializer{*system_, body};
  if (!sink.apply(content))
    return fail(errc::internal, "the run's journal cannot be written down");
  auto text = fmt::format(header_format, protocol_version, sequence_ + 1, content.claim.number, body.size(),
                          serialization::xxh3(bytes_of(body)));
  text.resize(header_size - 1, ' ');
  text += '\n';
  text.append(reinterpret_cast<const char*>(body.data()), body.size());
  text.resize((text.size() + block - 1) / block * block, '\0');
  auto& target = slots_[(sequence_ + 1) % slots_.size()];
  if (target.fd < 0) {
    target.fd = ::open(target.path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (target.fd < 0)
      return fail(io_failure("create", target.path));
    TROUPE_TRY(serialization::local_files().sync_directory(target.path.parent_path()));
  }
  for (std::size_t done = 0; done < text.size();) {
    const auto written = ::pwrite(target.fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (written <= 0)
      return fail(io_failure("write", target.path));
    done += static_cast<std::size_t>(written);
  }
  if (::fdatasync(target.fd) != 0)
    return fail(io_failure("write", target.path));
  ++sequence_;
  return {};
}

void control_journal::remove() noexcept {
  close();
  auto ignored = std::error_code{};
  for (const auto& each : slots_)
    std::filesystem::remove(each.path, ignored);
}

} // namespace troupe::actors

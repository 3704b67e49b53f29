#include "file.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace troupe::serialization {

namespace {

error file_error(std::string_view doing, const std::filesystem::path& path) {
  auto full = errno == ENOSPC || errno == EDQUOT;
  auto result = system_error(std::string{doing} + ' ' + path.string());
  if (full)
    result.message += " (free space there, or choose another storage path)";
  return result;
}

/// One call's share: the kernel takes no more than 2 GiB at a time.
std::size_t share(std::size_t size) {
  return std::min(size, std::size_t{1} << 30);
}

} // namespace

file::file(int descriptor, std::filesystem::path path) noexcept : descriptor_(descriptor), path_(std::move(path)) {}

file::file(file&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

file& file::operator=(file&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

file::~file() {
  if (descriptor_ >= 0)
    ::close(descriptor_);
}

expected<file> file::open(const std::filesystem::path& path) {
  auto descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    return fail(file_error("opening", path));
  return file{descriptor, path};
}

expected<file> file::create(const std::filesystem::path& path) {
  auto descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0)
    return fail(file_error("creating", path));
  return file{descriptor, path};
}

expected<std::uint64_t> file::size_bytes() const {
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0)
    return fail(file_error("looking at", path_));
  if (!S_ISREG(info.st_mode))
    return fail(errc::damaged, path_.string() + " is not a regular file");
  return static_cast<std::uint64_t>(info.st_size);
}

expected<void> file::reserve(std::uint64_t size_bytes) {
  if (size_bytes == 0)
    return {};
  auto status = EINTR;
  while (status == EINTR)
    status = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(size_bytes));
  // A file system that cannot reserve shows its lack of space later.
  if (status == 0 || status == EOPNOTSUPP)
    return {};
  errno = status;
  return fail(file_error("reserving " + std::to_string(size_bytes) + " bytes for", path_));
}

expected<void> file::write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    auto written = ::pwrite(descriptor_, bytes.data(), share(bytes.size()), static_cast<off_t>(offset_bytes));
    if (written < 0 && errno == EINTR)
      continue;
    if (written < 0)
      return fail(file_error("writing", path_));
    offset_bytes += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

expected<void> file::read_at(std::uint64_t offset_bytes, std::span<std::byte> target) const {
  while (!target.empty()) {
    auto taken = ::pread(descriptor_, target.data(), share(target.size()), static_cast<off_t>(offset_bytes));
    if (taken < 0 && errno == EINTR)
      continue;
    if (taken < 0)
      return fail(file_error("reading", path_));
    if (taken == 0)
      return fail(errc::damaged, path_.string() + " is truncated: it ends at byte " + std::to_string(offset_bytes));
    offset_bytes += static_cast<std::uint64_t>(taken);
    target = target.subspan(static_cast<std::size_t>(taken));
  }
  return {};
}

expected<void> file::sync() {
  if (::fsync(descriptor_) != 0)
    return fail(file_error("bringing to the device", path_));
  return {};
}

void file::drop_cached() const noexcept {
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
}

expected<void> sync_directory(const std::filesystem::path& path) {
  auto directory = file::open(path.empty() ? std::filesystem::path{"."} : path);
  if (!directory)
    return fail(std::move(directory.error()));
  return directory->sync();
}

error filesystem_error(std::error_code code, std::string_view doing, const std::filesystem::path& path) {
  errno = code.value();
  return file_error(doing, path);
}

} // namespace troupe::serialization

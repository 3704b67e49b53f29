#include <troupe/serialization/files/file_system.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

/// The size of one read: the kernel transfers at most 2 GiB per call.
constexpr std::size_t share_bytes = 1 << 30;

/// How many bytes are written before the device is asked to start writing them back.
constexpr std::size_t write_behind_bytes = 8 << 20;

tl::unexpected<error> failed(std::string_view doing, const fs::path& path) {
  return fail(file_error(errno, doing, path));
}

class descriptor {
 public:
  explicit descriptor(int number) noexcept : number_(number) {}
  descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  descriptor& operator=(descriptor&&) = delete;
  ~descriptor() {
    if (number_ >= 0)
      ::close(number_);
  }

  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  int number_;
};

expected<void> sync_descriptor(int number, const fs::path& path) {
  if (::fsync(number) != 0)
    return failed("syncing", path);
  return {};
}

class local_file : public file {
 public:
  local_file(descriptor descriptor, fs::path path) : file(std::move(path)), descriptor_(std::move(descriptor)) {}

  expected<std::uint64_t> size_bytes() const override {
    struct stat info {};
    if (::fstat(descriptor_.number(), &info) != 0)
      return failed("looking at", path());
    if (!S_ISREG(info.st_mode))
      return fail(errc::damaged, fmt::format("{} is not a regular file", path().string()));
    return static_cast<std::uint64_t>(info.st_size);
  }

  expected<void> reserve(std::uint64_t size_bytes) override {
    if (size_bytes == 0)
      return {};
    auto status = EINTR;
    while (status == EINTR)
      status = ::posix_fallocate(descriptor_.number(), 0, static_cast<off_t>(size_bytes));
    // A file system that cannot reserve reports a lack of space later.
    if (status == 0 || status == EOPNOTSUPP)
      return {};
    return fail(file_error(status, fmt::format("reserving {} bytes for", size_bytes), path()));
  }

  expected<void> write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      auto size = std::min(bytes.size(), write_behind_bytes);
      auto written = ::pwrite(descriptor_.number(), bytes.data(), size, static_cast<off_t>(offset_bytes));
      if (written < 0 && errno == EINTR)
        continue;
      if (written < 0)
        return failed("writing", path());
      offset_bytes += static_cast<std::uint64_t>(written);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      write_behind(offset_bytes);
    }
    return {};
  }

  expected<void> read_at(std::uint64_t offset_bytes, std::span<std::byte> target) const override {
    while (!target.empty()) {
      auto size = std::min(target.size(), share_bytes);
      auto taken = ::pread(descriptor_.number(), target.data(), size, static_cast<off_t>(offset_bytes));
      if (taken < 0 && errno == EINTR)
        continue;
      if (taken < 0)
        return failed("reading", path());
      if (taken == 0)
        return fail(errc::damaged, fmt::format("{} is truncated: it ends at byte {}", path().string(), offset_bytes));
      offset_bytes += static_cast<std::uint64_t>(taken);
      target = target.subspan(static_cast<std::size_t>(taken));
    }
    return {};
  }

  expected<void> sync() override { return sync_descriptor(descriptor_.number(), path()); }

  void drop_cached() const noexcept override { ::posix_fadvise(descriptor_.number(), 0, 0, POSIX_FADV_DONTNEED); }

 private:
  /// Starts writing back what has been written so far, in order, while the rest follows. That leaves less work for
  /// `sync`, which alone reports whether it succeeded.
  void write_behind(std::uint64_t end_bytes) {
    if (end_bytes < begun_bytes_ + write_behind_bytes)
      return;
    ::sync_file_range(descriptor_.number(), static_cast<off_t>(begun_bytes_),
                      static_cast<off_t>(end_bytes - begun_bytes_), SYNC_FILE_RANGE_WRITE);
    begun_bytes_ = end_bytes;
  }

  descriptor descriptor_;
  std::uint64_t begun_bytes_ = 0;
};

entry_kind kind_of(mode_t mode) {
  if (S_ISREG(mode))
    return entry_kind::file;
  return S_ISDIR(mode) ? entry_kind::directory : entry_kind::other;
}

class local_file_system : public file_system {
 public:
  expected<std::unique_ptr<file>> open(const fs::path& path) override {
    auto opened = descriptor{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (opened.number() < 0)
      return failed("opening", path);
    return std::make_unique<local_file>(std::move(opened), path);
  }

  expected<std::unique_ptr<file>> create(const fs::path& path) override {
    auto created = descriptor{::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
    if (created.number() < 0)
      return failed("creating", path);
    return std::make_unique<local_file>(std::move(created), path);
  }

  expected<std::optional<entry_kind>> look_at(const fs::path& path) override {
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0)
      return kind_of(info.st_mode);
    if (errno == ENOENT || errno == ENOTDIR)
      return std::nullopt;
    return failed("looking at", path);
  }

  expected<std::vector<directory_entry>> list(const fs::path& path) override {
    auto close = [](DIR* directory) { ::closedir(directory); };
    auto directory = std::unique_ptr<DIR, decltype(close)>{::opendir(path.c_str()), close};
    if (!directory)
      return failed("listing", path);
    auto result = std::vector<directory_entry>{};
    for (errno = 0; const auto* entry = ::readdir(directory.get()); errno = 0) {
      auto name = std::string{entry->d_name};
      struct stat info {};
      if (name == "." || name == "..")
        continue;
      if (::fstatat(::dirfd(directory.get()), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0)
        result.push_back({std::move(name), kind_of(info.st_mode)});
      else if (errno != ENOENT) // removed in the meantime
        return failed("looking at", path / name);
    }
    if (errno != 0)
      return failed("listing", path);
    std::ranges::sort(result, {}, &directory_entry::name);
    return result;
  }

  expected<void> make_directory(const fs::path& path) override {
    if (::mkdir(path.c_str(), 0777) != 0)
      return failed("creating the directory", path);
    return {};
  }

  expected<void> rename(const fs::path& from, const fs::path& to, if_taken what) override {
    auto flags = what == if_taken::refuse ? static_cast<unsigned>(RENAME_NOREPLACE) : 0u;
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0)
      return {};
    auto doing = fmt::format("renaming {} to", from.string());
    if (errno == ENOTEMPTY)
      errno = EEXIST;
    if (flags == 0 || (errno != EINVAL && errno != ENOSYS))
      return failed(doing, to);
    // File systems without RENAME_NOREPLACE (NFS). A run has one committer, so checking first is sufficient.
    struct stat info {};
    if (::lstat(to.c_str(), &info) == 0)
      return fail(file_error(EEXIST, doing, to));
    if (::rename(from.c_str(), to.c_str()) != 0)
      return failed(doing, to);
    return {};
  }

  expected<bool> link(const fs::path& from, const fs::path& to) override {
    if (::link(from.c_str(), to.c_str()) == 0)
      return true;
    if (means_no_links(errno))
      return false;
    return failed(fmt::format("linking {} to", from.string()), to);
  }

  expected<void> remove(const fs::path& path) override {
    if (std::remove(path.c_str()) != 0)
      return failed("removing", path);
    return {};
  }

  expected<void> sync_directory(const fs::path& path) override {
    auto opened = descriptor{::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (opened.number() < 0)
      return failed("opening", path);
    return sync_descriptor(opened.number(), path);
  }
};

} // namespace

file_system& local_files() {
  static local_file_system files;
  return files;
}

bool means_no_links(int cause) {
  return cause == EMLINK || cause == EPERM || cause == EXDEV || cause == ENOSYS || cause == EOPNOTSUPP;
}

error file_error(int cause, std::string_view doing, const fs::path& path) {
  errno = cause;
  auto result = system_error(fmt::format("{} {}", doing, path.string()));
  if (cause == ENOSPC || cause == EDQUOT)
    result.message += " (free space there, or choose another storage path)";
  if (cause == EROFS)
    result.message += " (mount it writable, or choose another storage path)";
  return result;
}

} // namespace troupe::serialization

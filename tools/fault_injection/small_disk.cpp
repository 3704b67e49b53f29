#include "small_disk.hpp"

#include "shell.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace troupe::chaos {

namespace {

constexpr const char* size_option = "size=256m";
constexpr std::uintmax_t image_bytes = 256 << 20;

/// The process that freezes a disk and thaws it again, also when the one that has started it was killed.
[[noreturn]] void guard_frozen_disk(int directory, int link) {
  // A terminal's Ctrl-C is not for this process.
  ::setpgid(0, 0);
  if (::ioctl(directory, FIFREEZE, 0) != 0)
    ::_exit(1);
  auto order = char{};
  ::send(link, "f", 1, MSG_NOSIGNAL);
  while (::read(link, &order, 1) < 0 && errno == EINTR) {
  }
  ::ioctl(directory, FITHAW, 0);
  ::_exit(0);
}

} // namespace

std::unique_ptr<small_disk> small_disk::in_memory(const std::filesystem::path& where, std::string& reason) {
  if (::mount("troupe-chaos", where.c_str(), "tmpfs", MS_NODEV | MS_NOSUID, size_option) != 0) {
    reason = fmt::format("cannot mount a tmpfs on {}: {}", where.string(), std::strerror(errno));
    return nullptr;
  }
  return std::unique_ptr<small_disk>{new small_disk{where}};
}

std::unique_ptr<small_disk> small_disk::on_loop_device(const std::filesystem::path& image,
                                                       const std::filesystem::path& where, std::string& reason) {
  auto works = [&reason](const std::vector<std::string>& argv) {
    auto complaint = complaint_of(argv);
    if (complaint)
      reason = *complaint;
    return !complaint;
  };
  auto code = std::error_code{};
  ::close(::open(image.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  std::filesystem::resize_file(image, image_bytes, code);
  if (code) {
    reason = fmt::format("cannot make a disk's image at {}: {}", image.string(), code.message());
    return nullptr;
  }
  if (!works({"mkfs.ext4", "-q", "-F", "-m", "0", image.string()}) ||
      !works({"mount", "-o", "loop,noatime,nodev,nosuid", image.string(), where.string()}))
    return nullptr;
  auto result = std::unique_ptr<small_disk>{new small_disk{where}};
  // A run expects only its own checkpoints there.
  std::filesystem::remove(where / "lost+found", code);
  result->directory_ = ::open(where.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (result->can_freeze())
    return result;
  reason = fmt::format("cannot open {}: {}", where.string(), std::strerror(errno));
  return nullptr;
}

small_disk::~small_disk() {
  thaw();
  if (directory_ >= 0)
    ::close(directory_);
  // Lazily, because processes of a broken run may still have files open.
  ::umount2(where_.c_str(), MNT_DETACH);
}

void small_disk::fill() const {
  auto fd = ::open(ballast().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND, 0600);
  if (fd < 0)
    return;
  // Blocks are reserved without being written, and what is left of them is.
  struct statvfs space = {};
  if (::fstatvfs(fd, &space) == 0)
    for (auto size = static_cast<off_t>(space.f_bavail * space.f_frsize), end = off_t{0}; size > 4096;) {
      if (::fallocate(fd, 0, end, size) == 0)
        end += size;
      else
        size /= 2;
    }
  const auto zeros = std::vector<char>(1 << 20);
  for (auto size = zeros.size(); size > 0;)
    if (::write(fd, zeros.data(), size) < 0)
      size /= 2;
  ::close(fd);
}

void small_disk::free() const {
  auto ignored = std::error_code{};
  std::filesystem::remove(ballast(), ignored);
}

bool small_disk::freeze() {
  std::array<int, 2> ends{};
  if (guard_ > 0 || ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return false;
  guard_ = ::fork();
  if (guard_ == 0) {
    // Otherwise it would wait for its own end of the connection when this process has ended.
    ::close(ends[0]);
    guard_frozen_disk(directory_, ends[1]);
  }
  ::close(ends[1]);
  guard_link_ = ends[0];
  auto report = char{};
  auto size = ssize_t{0};
  while (guard_ > 0 && (size = ::read(guard_link_, &report, 1)) < 0 && errno == EINTR) {
  }
  if (size == 1)
    return true;
  thaw();
  return false;
}

void small_disk::thaw() {
  if (guard_link_ < 0)
    return;
  // Helper processes may hold this end of the connection as well, so closing it is not enough.
  ::send(guard_link_, "t", 1, MSG_NOSIGNAL);
  ::close(std::exchange(guard_link_, -1));
  if (guard_ > 0)
    ::waitpid(guard_, nullptr, 0);
  guard_ = -1;
}

} // namespace troupe::chaos

#include "small_disk.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>
#include <vector>

namespace troupe::chaos {

namespace {

constexpr const char* size_option = "size=256m";

} // namespace

std::unique_ptr<small_disk> small_disk::mount(const std::filesystem::path& where, std::string& reason) {
  if (::mount("troupe-chaos", where.c_str(), "tmpfs", MS_NODEV | MS_NOSUID, size_option) != 0) {
    reason = fmt::format("cannot mount a tmpfs on {}: {}", where.string(), std::strerror(errno));
    return nullptr;
  }
  return std::unique_ptr<small_disk>{new small_disk{where}};
}

small_disk::~small_disk() {
  // Lazily, because processes of a broken run may still have files open.
  ::umount2(where_.c_str(), MNT_DETACH);
}

void small_disk::fill() const {
  auto fd = ::open(ballast().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND, 0600);
  if (fd < 0)
    return;
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

} // namespace troupe::chaos

#include "file_bytes.hpp"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace troupe::data {

namespace {

struct descriptor {
  int number;
  explicit descriptor(int fd) : number(fd) {}
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  ~descriptor() {
    if (number >= 0)
      ::close(number);
  }
};

expected<file_bytes> read_to_end(int fd, const std::filesystem::path& path) {
  constexpr std::size_t piece = std::size_t{1} << 16u;
  auto content = std::make_shared<std::vector<std::byte>>();
  for (std::size_t filled = 0;;) {
    content->resize(filled + piece);
    auto count = ::read(fd, content->data() + filled, piece);
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0)
      return fail(system_error(path.string()));
    filled += static_cast<std::size_t>(count);
    content->resize(filled);
    if (count == 0)
      return file_bytes{*content, content};
  }
}

} // namespace

expected<file_bytes> open_bytes(const std::filesystem::path& path) {
  auto file = descriptor{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  struct ::stat status {};
  if (file.number < 0 || ::fstat(file.number, &status) != 0)
    return fail(system_error(path.string()));
  if (!S_ISREG(status.st_mode) || status.st_size == 0)
    return read_to_end(file.number, path);
  auto size = static_cast<std::size_t>(status.st_size);
  auto* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (address == MAP_FAILED)
    return fail(system_error(path.string()));
  auto owner = std::shared_ptr<const void>{address, [size](void* begin) { ::munmap(begin, size); }};
  return file_bytes{{static_cast<const std::byte*>(address), size}, std::move(owner)};
}

} // namespace troupe::data

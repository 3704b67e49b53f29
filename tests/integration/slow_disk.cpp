// Preloaded into every process of a run. Makes files below TROUPE_SLOW_DIRECTORY as slow as on a disk with
// TROUPE_SLOW_BYTES_PER_SECOND on which each fsync takes TROUPE_SLOW_SYNC_MS. Each process has its own such disk, which
// serves one call at a time.

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <limits.h>
#include <mutex>
#include <string>
#include <sys/types.h>
#include <thread>
#include <unistd.h>

namespace {

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

double number(const char* variable) {
  const auto* text = std::getenv(variable);
  return text ? std::strtod(text, nullptr) : 0;
}

bool is_slow(int descriptor) {
  static const auto* directory = std::getenv("TROUPE_SLOW_DIRECTORY");
  if (!directory)
    return false;
  char path[PATH_MAX];
  auto link = "/proc/self/fd/" + std::to_string(descriptor);
  auto length = ::readlink(link.c_str(), path, sizeof(path));
  return length > 0 && std::string_view{path, static_cast<std::size_t>(length)}.starts_with(directory);
}

void take(double seconds) {
  static std::mutex disk;
  auto lock = std::lock_guard{disk};
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

void take_bytes(int descriptor, ssize_t bytes) {
  static const auto rate = number("TROUPE_SLOW_BYTES_PER_SECOND");
  if (bytes > 0 && rate > 0 && is_slow(descriptor))
    take(static_cast<double>(bytes) / rate);
}

void take_sync(int descriptor) {
  static const auto milliseconds = number("TROUPE_SLOW_SYNC_MS");
  if (is_slow(descriptor))
    take(milliseconds / 1000);
}

} // namespace

extern "C" {

ssize_t write(int descriptor, const void* bytes, size_t size) {
  static auto* real = next<ssize_t(int, const void*, size_t)>("write");
  auto written = real(descriptor, bytes, size);
  take_bytes(descriptor, written);
  return written;
}

ssize_t pwrite(int descriptor, const void* bytes, size_t size, off_t offset) {
  static auto* real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  auto written = real(descriptor, bytes, size, offset);
  take_bytes(descriptor, written);
  return written;
}

ssize_t pwrite64(int descriptor, const void* bytes, size_t size, off64_t offset) {
  static auto* real = next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  auto written = real(descriptor, bytes, size, offset);
  take_bytes(descriptor, written);
  return written;
}

int fsync(int descriptor) {
  static auto* real = next<int(int)>("fsync");
  take_sync(descriptor);
  return real(descriptor);
}
}

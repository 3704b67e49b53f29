#pragma once

#include <processes.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <filesystem>
#include <linux/fuse.h>
#include <mutex>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace troupe::testing {

/// A file system with one file, mounted on a directory during this object's lifetime, whose disk can stall. Who opens
/// or reads the file meanwhile then sleeps in the kernel, and not even SIGKILL ends it: a frozen file system, in
/// contrast, only stops writers. Not mounted without the right to, or without FUSE.
class stalling_disk {
 public:
  /// The file is a program of the name and the content of `source`.
  stalling_disk(std::filesystem::path where, const std::filesystem::path& source)
      : where_(std::move(where)),
        name_(source.filename().string()),
        source_(::open(source.c_str(), O_RDONLY | O_CLOEXEC)),
        device_(::open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK)) {
    std::filesystem::create_directories(where_);
    const auto options = "fd=" + std::to_string(device_) + ",rootmode=40755,user_id=0,group_id=0";
    mounted_ = device_ >= 0 && source_ >= 0 &&
               ::mount("troupe-test", where_.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0;
    if (mounted_)
      thread_ = std::thread{[this] { serve(); }};
  }
  stalling_disk(const stalling_disk&) = delete;
  stalling_disk& operator=(const stalling_disk&) = delete;
  ~stalling_disk() {
    if (mounted_) {
      go_on();
      ::umount2(where_.c_str(), MNT_DETACH);
      {
        auto lock = std::lock_guard{mutex_};
        ends_ = true;
      }
      thread_.join();
    }
    // Whoever still waits gets an error.
    for (const auto fd : {device_, source_})
      if (fd >= 0)
        ::close(fd);
  }

  [[nodiscard]] bool mounted() const noexcept { return mounted_; }
  [[nodiscard]] std::filesystem::path file() const { return where_ / name_; }

  /// For `hang_limit` at most: whoever looks at a process whose memory waits for the disk waits with it, as ps does
  /// and as this test may.
  void stall() {
    auto lock = std::lock_guard{mutex_};
    stalled_until_ = clock::now() + hang_limit;
  }
  void go_on() {
    auto lock = std::lock_guard{mutex_};
    answer_all();
  }
  /// How many calls wait for the disk.
  [[nodiscard]] std::size_t waiting() const {
    auto lock = std::lock_guard{mutex_};
    return held_.size();
  }

 private:
  using bytes = std::vector<std::byte>;
  using clock = std::chrono::steady_clock;
  static constexpr std::uint64_t file_id = 2;
  static constexpr std::uint32_t most_bytes = 1 << 17;

  template <class T>
  static T read_as(const bytes& request, std::size_t offset = sizeof(fuse_in_header)) {
    T result{};
    std::memcpy(&result, request.data() + offset, std::min(sizeof(T), request.size() - offset));
    return result;
  }

  void serve() {
    bytes buffer(most_bytes + 4096);
    for (;;) {
      auto wanted = pollfd{device_, POLLIN, 0};
      ::poll(&wanted, 1, 10);
      const auto n = ::read(device_, buffer.data(), buffer.size());
      const auto error = errno;
      auto lock = std::lock_guard{mutex_};
      if (stalled_until_ && clock::now() > *stalled_until_)
        answer_all();
      if (ends_ || (n < 0 && error == ENODEV))
        return;
      if (n < static_cast<ssize_t>(sizeof(fuse_in_header)))
        continue;
      auto request = bytes{buffer.begin(), buffer.begin() + n};
      // The kernel has marked them as taken: from now on the caller cannot be interrupted.
      if (stalled_until_)
        held_.push_back(std::move(request));
      else
        answer(request);
    }
  }

  /// With the lock, as what follows.
  void answer_all() {
    stalled_until_.reset();
    for (const auto& each : held_)
      answer(each);
    held_.clear();
  }

  template <class T>
  void reply(const fuse_in_header& to, const T& what) const {
    send(to, 0, &what, sizeof(T));
  }

  void send(const fuse_in_header& to, int error, const void* content, std::size_t size) const {
    auto header = fuse_out_header{static_cast<std::uint32_t>(sizeof(fuse_out_header) + size), -error, to.unique};
    const auto parts = std::array{iovec{&header, sizeof(header)}, iovec{const_cast<void*>(content), size}};
    // A caller that is gone needs no answer.
    [[maybe_unused]] const auto written = ::writev(device_, parts.data(), static_cast<int>(parts.size()));
  }

  [[nodiscard]] fuse_attr attributes_of(std::uint64_t id) const {
    struct stat status {};
    ::fstat(source_, &status);
    fuse_attr result{};
    result.ino = id;
    result.nlink = 1;
    result.mode = id == file_id ? S_IFREG | 0755 : S_IFDIR | 0755;
    result.size = id == file_id ? static_cast<std::uint64_t>(status.st_size) : 0;
    return result;
  }

  void answer(const bytes& request) const {
    const auto header = read_as<fuse_in_header>(request, 0);
    switch (header.opcode) {
    case FUSE_INIT: {
      fuse_init_out result{};
      result.major = FUSE_KERNEL_VERSION;
      result.minor = FUSE_KERNEL_MINOR_VERSION;
      result.max_write = 4096;
      return reply(header, result);
    }
    case FUSE_LOOKUP: {
      if (name_ != reinterpret_cast<const char*>(request.data() + sizeof(fuse_in_header)))
        return send(header, ENOENT, nullptr, 0);
      fuse_entry_out result{};
      result.nodeid = file_id;
      result.attr = attributes_of(file_id);
      return reply(header, result);
    }
    case FUSE_GETATTR: {
      fuse_attr_out result{};
      result.attr = attributes_of(header.nodeid);
      return reply(header, result);
    }
    case FUSE_OPEN: {
      // Each opening asks the disk, but what runs keeps its pages, and closing asks nothing.
      fuse_open_out result{};
      result.open_flags = FOPEN_KEEP_CACHE | FOPEN_NOFLUSH;
      return reply(header, result);
    }
    case FUSE_READ: {
      const auto what = read_as<fuse_read_in>(request);
      bytes content(std::min(what.size, most_bytes));
      const auto n = ::pread(source_, content.data(), content.size(), static_cast<off_t>(what.offset));
      return send(header, n < 0 ? errno : 0, content.data(), n < 0 ? 0 : static_cast<std::size_t>(n));
    }
    case FUSE_RELEASE:
      return send(header, 0, nullptr, 0);
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
      return;
    default:
      return send(header, ENOSYS, nullptr, 0);
    }
  }

  std::filesystem::path where_;
  std::string name_;
  int source_;
  int device_;
  bool mounted_ = false;
  mutable std::mutex mutex_;
  std::optional<clock::time_point> stalled_until_;
  bool ends_ = false;
  std::deque<bytes> held_;
  std::thread thread_;
};

} // namespace troupe::testing

#pragma once

#include <troupe/collectives/unique_fd.hpp>

#include <cstdint>
#include <sys/eventfd.h>
#include <unistd.h>

namespace troupe::collectives::tcp {

/// Interrupts a `poll` from another thread. `set` and `clear` from any thread.
class wake_event {
 public:
  /// Whether the system had a descriptor left.
  [[nodiscard]] bool is_valid() const noexcept { return static_cast<bool>(fd_); }

  /// Readable while set.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  void set() const noexcept {
    const std::uint64_t one = 1;
    // Fails only if it is set already.
    [[maybe_unused]] const auto written = ::write(fd_.get(), &one, sizeof(one));
  }

  void clear() const noexcept {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto read = ::read(fd_.get(), &count, sizeof(count));
  }

 private:
  unique_fd fd_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

} // namespace troupe::collectives::tcp

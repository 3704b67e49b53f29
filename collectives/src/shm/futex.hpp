#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/// Futexes in their shared variants, because other processes map the word at other addresses.
namespace troupe::collectives::shm {

inline void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// False if the timeout expired first.
inline bool futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                       std::chrono::nanoseconds limit) noexcept {
  using namespace std::chrono_literals;
  const auto timeout = timespec{static_cast<time_t>(limit / 1s), static_cast<long>((limit % 1s).count())};
  return ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0) == 0 || errno != ETIMEDOUT;
}

} // namespace troupe::collectives::shm

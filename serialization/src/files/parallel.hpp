#pragma once

#include <troupe/error.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace troupe::serialization {

/// How many threads to use for `total_bytes` bytes: `asked_for`, or the number of processors up to 8; fewer if starting
/// them would take longer than the work.
[[nodiscard]] inline std::size_t threads_for(unsigned asked_for, std::uint64_t total_bytes) {
  constexpr auto least_bytes = std::uint64_t{4} << 20;
  auto most = asked_for != 0 ? asked_for : std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
  return static_cast<std::size_t>(std::min<std::uint64_t>(most, total_bytes / least_bytes + 1));
}

/// Calls `work(i)`, which returns `expected<void>`, for all i below `count` on `threads` threads including the
/// caller's. Returns the error with the smallest i, even if another one came first; later indices may be skipped.
template <class Work>
expected<void> for_each_index(std::size_t count, std::size_t threads, Work work) {
  auto next = std::atomic<std::size_t>{0};
  auto mutex = std::mutex{};
  auto failed_at = count;
  auto reason = std::optional<error>{};
  auto take = [&] {
    for (auto i = next++; i < count; i = next++) {
      expected<void> done = work(i);
      if (done)
        continue;
      auto lock = std::scoped_lock{mutex};
      next = count;
      if (i < failed_at) {
        failed_at = i;
        reason = std::move(done.error());
      }
    }
  };
  {
    auto others = std::vector<std::jthread>{};
    for (std::size_t i = 1; i < std::min(threads, count); ++i)
      others.emplace_back(take);
    take();
  }
  if (reason)
    return fail(std::move(*reason));
  return {};
}

} // namespace troupe::serialization

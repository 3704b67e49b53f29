#pragma once

#include <troupe/collectives/unique_fd.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::bench {

/// One rank's link to the parent process, which acts as control plane. It all-gathers a few bytes or descriptors; all
/// ranks call it in the same order. Throws `std::runtime_error` if the parent or a rank is gone.
class rank_link {
 public:
  rank_link(collectives::unique_fd socket, std::uint32_t rank, std::uint32_t size)
      : socket_(std::move(socket)), rank_(rank), size_(size) {}

  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

  /// All ranks' bytes in rank order.
  std::vector<std::string> exchange(std::string_view mine);

  /// Copies of all ranks' descriptors in rank order; this rank's own entry is empty.
  std::vector<std::vector<collectives::unique_fd>> exchange_descriptors(std::span<const int> mine);

  void barrier() { exchange({}); }
  double maximum(double mine);

 private:
  collectives::unique_fd socket_;
  std::uint32_t rank_;
  std::uint32_t size_;
};

/// Forks one process for each rank, before this process has any threads, and serves them until they have ended. False
/// if one of them failed.
[[nodiscard]] bool run_ranks(std::uint32_t size, const std::function<void(rank_link&)>& body);

} // namespace troupe::bench

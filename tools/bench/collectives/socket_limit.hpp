#pragma once

#include "rank_link.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace troupe::bench {

/// Plain loopback TCP sockets between all ranks: a lower bound of the time of a sum over them. No frames, no checks, no
/// deadlines, no order of addition.
class plain_sockets {
 public:
  /// Connects all ranks; all call it. Throws `std::runtime_error`.
  explicit plain_sockets(rank_link& link);

  /// `data` has the same size on all ranks. Reduce-scatter, then all-gather, both directly between all ranks.
  void sum(std::span<float> data);

 private:
  /// Sends and receives at once, to and from all peers, as far as each socket takes it.
  void move(const std::function<std::span<const std::byte>(std::uint32_t)>& out,
            const std::function<std::span<std::byte>(std::uint32_t)>& in);

  std::uint32_t rank_;
  /// One for each rank; this rank's own is empty.
  std::vector<collectives::unique_fd> peers_;
  std::vector<float> received_;
};

} // namespace troupe::bench

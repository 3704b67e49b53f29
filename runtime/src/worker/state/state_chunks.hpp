#pragma once

#include <troupe/collectives/communicator.hpp>
#include <troupe/tracked_state.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::runtime {

/// A piece of the tracked state that travels as one message.
struct state_chunk {
  std::size_t tensor = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

inline constexpr std::uint64_t state_chunk_bytes = std::uint64_t{4} << 20;

/// All of the tensors as chunks, in order.
[[nodiscard]] inline std::vector<state_chunk> chunks_of(const tracked_state& state) {
  std::vector<state_chunk> result;
  for (std::size_t i = 0; i < state.tensors().size(); ++i) {
    const auto size = state.tensors()[i].spec.size_bytes();
    for (std::uint64_t first = 0; first < size; first += state_chunk_bytes)
      result.push_back({i, first, std::min(size - first, state_chunk_bytes)});
  }
  return result;
}

/// Sends and receives chunks: in place if a pointer can reach their memory, otherwise through a copy. Throws the errors
/// of a `tensor_memory`.
class chunk_carrier {
 public:
  explicit chunk_carrier(tracked_state& state) : state_(state) {}

  [[nodiscard]] expected<void> send(collectives::communicator& group, rank_id to, const state_chunk& chunk) {
    auto bytes = memory_of(chunk);
    if (bytes.data() == copy_.data())
      state_.copy_out(chunk.tensor, chunk.offset_bytes, bytes);
    return group.send(to, bytes);
  }

  [[nodiscard]] expected<void> receive(collectives::communicator& group, rank_id from, const state_chunk& chunk) {
    auto bytes = memory_of(chunk);
    auto got = group.receive(from, bytes);
    if (got && bytes.data() == copy_.data())
      state_.copy_in(chunk.tensor, chunk.offset_bytes, bytes);
    return got;
  }

 private:
  std::span<std::byte> memory_of(const state_chunk& chunk) {
    auto bytes = state_.in_place(chunk.tensor, chunk.offset_bytes, chunk.size_bytes);
    if (!bytes.empty())
      return bytes;
    copy_.resize(chunk.size_bytes);
    return copy_;
  }

  tracked_state& state_;
  std::vector<std::byte> copy_;
};

} // namespace troupe::runtime

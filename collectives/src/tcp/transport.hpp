#pragma once

#include "tcp/connection.hpp"
#include "tcp/word_exchange.hpp"
#include "transport/transport.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <poll.h>
#include <vector>

namespace troupe::collectives::tcp {

/// The connections to one peer: one for messages, and one for the word exchange.
struct peer_channels {
  std::unique_ptr<channel> messages;
  std::unique_ptr<channel> words;
};

/// Messages over TCP. The thread that makes the calls moves the bytes itself: it writes when it posts a message, and
/// while it waits it reads and writes for all peers, looks again for some microseconds, and then sleeps until a socket
/// is ready. Hand-overs between threads would add to the time of each step, so the caller uses its sockets directly.
/// One more thread, which normally sleeps, answers questions about this rank's calls (`word_exchange`).
class tcp_transport final : public transport, private connection_events {
 public:
  struct settings {
    std::uint32_t rank = 0;
    generation_id generation;
    std::chrono::milliseconds deadline;
    std::optional<std::chrono::milliseconds> answer_deadline;
  };

  /// `peers`, by rank, are null for this rank and those without a connection.
  tcp_transport(const settings& how, std::vector<peer_channels> peers);
  /// Leaves the group: peers still get what they need for calls that have returned here.
  ~tcp_transport() override;

  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t world_size() const noexcept override { return static_cast<std::uint32_t>(links_.size()); }
  std::uint64_t piece_bytes() const noexcept override;
  std::chrono::nanoseconds latency() const noexcept override { return latency_; }
  flight_record record() const override;
  std::vector<rank_id> unanswering() const override;
  void set_deadline(std::chrono::milliseconds deadline) noexcept override { deadline_ = deadline; }
  expected<void> begin(const call_record& call) override;
  ticket send(std::uint32_t peer, std::uint64_t tag, const std::byte* data, std::size_t size_bytes) override;
  ticket receive(std::uint32_t peer, std::uint64_t tag, std::byte* data, std::size_t size_bytes) override;
  expected<void> wait(ticket message) override;
  expected<void> finish() override;
  void abort(error reason) noexcept override { words_.abort(std::move(reason)); }

 private:
  using clock = std::chrono::steady_clock;

  /// When the running call ends at the latest, and when it asks the peers next.
  struct call_clock {
    clock::time_point ends_at;
    clock::time_point asks_at;
    std::chrono::milliseconds interval{0};
    /// When this rank looked last: it may be frozen itself between two looks.
    clock::time_point looked_at;
  };

  void completed(std::uint32_t peer, ticket message) override;
  bool fits(std::uint32_t peer, const frame_header& header) override;

  ticket open(std::uint32_t peer);
  frame_header header_of(std::uint64_t tag, std::size_t size_bytes) const;
  template <class Condition>
  expected<void> wait_until(const Condition& is_met);
  bool move_bytes();
  std::vector<std::uint32_t> missing_ranks() const;
  error find_trouble();
  error find_silence(clock::time_point now);
  void sleep(clock::time_point now);
  expected<void> give_up(error reason);
  bool has_unsent() const noexcept;

  const std::uint32_t rank_;
  const generation_id generation_;
  std::vector<std::unique_ptr<connection>> links_;
  word_exchange words_;
  std::chrono::milliseconds deadline_;
  const std::optional<std::chrono::milliseconds> answer_deadline_;
  const std::chrono::nanoseconds latency_;

  call_record call_;
  call_clock clock_;
  /// By ticket, whether it is complete.
  std::vector<std::uint8_t> is_done_;
  std::size_t open_messages_ = 0;
  /// By rank; `record` reads them.
  std::vector<std::atomic<std::uint32_t>> open_with_;
  /// By rank, what this rank has sent in calls of `send` since the peer last acknowledged one.
  std::vector<std::uint64_t> unacknowledged_bytes_;
  std::vector<pollfd> polled_;
};

} // namespace troupe::collectives::tcp

#pragma once

#include "transport.hpp"

#include <troupe/types.hpp>

#include <chrono>
#include <cstdint>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace troupe::collectives {

/// Messages over Gloo's TCP pairs. Three peculiarities of Gloo shape it:
/// - A pair that fails while it reads or writes a message does not tell that message's buffer. So every pair has a
///   receive that never completes, and a thread that waits on it: that one is always told.
/// - A context's lock is held while a pair of it waits for the event loop, which may want that lock for another pair.
/// So
///   every pair has a context of its own.
/// - A wait that times out closes its context's pairs. So no wait is shorter than the operation's deadline, except on
///   the way out.
class gloo_transport final : public transport {
 public:
  using context_ptr = std::shared_ptr<gloo::transport::Context>;
  using device_ptr = std::shared_ptr<gloo::transport::Device>;

  /// `contexts` are of `device`; there is one for each rank, with one connected pair to that rank; none for the own
  /// rank.
  gloo_transport(std::uint32_t rank, generation_id generation, std::chrono::milliseconds deadline, device_ptr device,
                 std::vector<context_ptr> contexts);
  ~gloo_transport() override;

  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t world_size() const noexcept override { return static_cast<std::uint32_t>(links_.size()); }
  expected<void> begin(const operation& op) override;
  ticket send(std::uint32_t peer, std::uint64_t tag, const std::byte* data, std::size_t size_bytes) override;
  ticket receive(std::uint32_t peer, std::uint64_t tag, std::byte* data, std::size_t size_bytes) override;
  expected<void> wait(ticket message) override;
  expected<void> finish() override;
  void abort(error reason) noexcept override;

 private:
  using buffer_ptr = std::unique_ptr<gloo::transport::UnboundBuffer>;

  enum class direction : std::uint8_t { send, receive };

  struct pending {
    std::uint32_t peer = 0;
    direction way = direction::send;
    buffer_ptr buffer;
    bool is_done = false;
  };

  /// The connection to one peer, watched by its thread.
  struct link {
    std::uint32_t peer = 0;
    context_ptr context;
    buffer_ptr watch;
    std::byte watch_byte{};
    std::thread watcher;
  };

  ticket post(std::uint32_t peer, direction way, std::uint64_t tag, void* data, std::size_t size_bytes);
  static bool wait_for(pending& message, std::chrono::milliseconds timeout);
  static bool is_complete(pending& message) noexcept;
  bool is_lost_peer_needed();
  bool has_failed();
  std::string incomplete_ranks();

  void watch(link& peer);
  void lose(std::uint32_t peer, const char* why);
  expected<void> give_up(error reason);
  void wake_all();
  error lost_error();
  error timeout_error();
  std::string where() const;

  const std::uint32_t rank_;
  const generation_id generation_;
  const std::chrono::milliseconds deadline_;
  /// Outlives the watchers, so that its event loop does not end in one of them.
  const device_ptr device_;
  std::vector<std::unique_ptr<link>> links_;

  operation operation_;
  std::chrono::steady_clock::time_point ends_at_;

  /// Guards what follows; the waiting thread reads `messages_` without it, because only that thread changes it.
  std::mutex mutex_;
  std::vector<pending> messages_;
  std::vector<std::uint32_t> lost_;
  std::string first_loss_;
  error failure_;
  bool is_leaving_ = false;
};

} // namespace troupe::collectives

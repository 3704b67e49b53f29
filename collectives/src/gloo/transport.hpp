#pragma once

#include "transport/transport.hpp"

#include <troupe/types.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace troupe::collectives {

/// Messages over Gloo's TCP pairs. Three properties of Gloo shape this class:
/// - A pair that fails in the middle of a message does not notify that message's buffer. So every pair has a buffer
///   with two posted receives and a thread that waits on it: only one of the two can be in the middle of a message, so
///   that buffer is always notified.
/// - A context's lock is held while one of its pairs waits for the event loop, which may want that lock for another
///   pair. So every pair has its own context.
/// - A wait that times out closes the pairs of its context. So no wait is shorter than the call's deadline, except when
///   leaving, and there is no way to poll a message.
///
/// The two receives carry the peer's words. Ranks that make different calls post different tags, so they do not take
/// each other's bytes; they wait. When a call takes long, a separate thread periodically sends every peer this rank's
/// word (its current call and how many calls it has begun) and asks for theirs. The peer's watcher answers, whatever
/// its caller is doing. A mismatch that either side finds is final, because calls are numbered and never undone:
/// - two collective calls with the same number that differ, even if one of them ended long ago;
/// - a send and the receive with the same number between two ranks, with different sizes;
/// - two ranks in calls that need each other, neither of which the other has begun: a send against a collective call.
///
/// The rank that finds a mismatch, or hears of one, forwards it to all. The affected ranks fail once all have confirmed
/// it, so that nobody mistakes their closing connections for a loss. Not found: a send of nothing against a receive of
/// something, a cycle of more than two ranks, and differences between calls that need no messages. Those run into the
/// deadline.
class gloo_transport final : public transport {
 public:
  using context_ptr = std::shared_ptr<gloo::transport::Context>;
  using device_ptr = std::shared_ptr<gloo::transport::Device>;

  /// `contexts` belong to `device`. There is one per rank, with one connected pair to that rank, and none for this
  /// rank. Both sides of every pair are connected: Gloo does not survive the reset that an earlier close would cause.
  gloo_transport(std::uint32_t rank, generation_id generation, std::chrono::milliseconds deadline, device_ptr device,
                 std::vector<context_ptr> contexts);
  ~gloo_transport() override;

  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t world_size() const noexcept override { return static_cast<std::uint32_t>(links_.size()); }
  flight_record record() const override;
  void set_deadline(std::chrono::milliseconds deadline) noexcept override;
  expected<void> begin(const call_record& call) override;
  ticket send(std::uint32_t peer, std::uint64_t tag, const std::byte* data, std::size_t size_bytes) override;
  ticket receive(std::uint32_t peer, std::uint64_t tag, std::byte* data, std::size_t size_bytes) override;
  expected<void> wait(ticket message) override;
  expected<void> finish() override;
  void abort(error reason) noexcept override;

 private:
  using clock = std::chrono::steady_clock;
  using buffer_ptr = std::unique_ptr<gloo::transport::UnboundBuffer>;

  enum class direction : std::uint8_t { send, receive };

  struct pending {
    std::uint32_t peer = 0;
    direction way = direction::send;
    buffer_ptr buffer;
    /// Written by the waiting thread; others read it atomically.
    alignas(std::atomic_ref<bool>::required_alignment) bool is_done = false;
  };

  /// Two calls that contradict each other.
  struct mismatch {
    std::uint32_t left = 0;
    std::uint32_t right = 0;
    call_record of_left;
    call_record of_right;
  };

  /// A rank's report of its state to one peer.
  struct word {
    enum : std::uint32_t { under_way = 1, wants_answer = 2, knows_mismatch = 4 };

    /// The running call, or the last one.
    call_record call;
    /// Since the start of a running call, otherwise since its end.
    std::int64_t elapsed_ns = 0;
    /// The calls that this rank has begun: collective ones, and those with the receiver.
    std::uint64_t collective_calls = 0;
    std::uint64_t sends_to_you = 0;
    std::uint64_t receives_from_you = 0;
    /// The number of words received from the receiver of this one.
    std::uint64_t words_from_you = 0;
    /// Valid with `knows_mismatch`.
    mismatch found;
    std::uint32_t flags = 0;
    std::uint32_t reserved = 0;

    [[nodiscard]] bool has(std::uint32_t flag) const noexcept { return (flags & flag) != 0; }
  };

  /// Kept until the peer confirms its arrival.
  struct sent_word {
    std::uint64_t number = 0;
    word content;
    buffer_ptr buffer;
  };

  /// The connection to one peer, watched by its thread.
  struct link {
    std::uint32_t peer = 0;
    context_ptr context;
    std::array<word, 2> incoming;
    buffer_ptr watch;
    std::uint64_t words_heard = 0;
    std::uint64_t words_told = 0;
    std::deque<std::unique_ptr<sent_word>> outgoing;
    std::thread watcher;
    bool is_lost = false;
    bool knows_mismatch = false;
    /// The peer's last word and its arrival time.
    std::optional<word> heard;
    clock::time_point heard_at;
    /// The last of each that this rank has begun.
    call_record send;
    call_record receive;
  };

  ticket post(std::uint32_t peer, direction way, std::uint64_t tag, void* data, std::size_t size_bytes);
  std::uint64_t wire_tag(std::uint64_t tag, std::size_t size_bytes) const noexcept;
  static bool wait_for(pending& message, std::chrono::milliseconds timeout);
  static bool is_complete(pending& message) noexcept;
  error find_trouble();
  bool is_needed(const std::vector<std::uint32_t>& ranks);
  expected<void> give_up(error reason);

  void watch(link& peer);
  void leave(link& peer);
  void look_after_late_calls();
  void lose(std::uint32_t peer, const char* why);
  error lost_error();
  error timeout_error();

  // With the lock held:
  void take_note(const call_record& call);
  void end_call();
  void hear(link& peer);
  void answer(link& peer);
  void tell(link& peer, std::uint32_t flags);
  void tell_all(std::uint32_t flags);
  void compare(const link& peer);
  void learn(const mismatch& found);
  void mark_lost(link& peer, const char* why);
  void wake_all();
  bool is_over() const noexcept { return failure_.code != errc::none || is_leaving_; }
  bool is_concerned() const;
  bool has_arrived(const link& peer) const;
  std::vector<std::uint32_t> lost_ranks() const;
  std::string where() const;
  std::string position_of(const link& peer) const;
  error mismatch_error() const;

  const std::uint32_t rank_;
  const generation_id generation_;
  /// Outlives the watchers, so that its event loop does not end in one of them.
  const device_ptr device_;
  std::vector<std::unique_ptr<link>> links_;

  // Used by the thread that makes the calls.
  std::uint64_t call_digest_ = 0;
  clock::time_point ends_at_;

  /// Guards everything below. The waiting thread reads `messages_` without it, because only that thread changes it.
  mutable std::mutex mutex_;
  /// Notified when a word arrives or something ends.
  std::condition_variable changed_;
  std::vector<pending> messages_;
  std::chrono::milliseconds deadline_;
  call_record call_;
  bool is_under_way_ = false;
  clock::time_point begun_at_;
  clock::time_point ended_at_;
  std::uint64_t collective_calls_ = 0;
  /// The last collective calls, at their number modulo the size.
  std::array<call_record, 64> history_;
  std::optional<mismatch> mismatch_;
  std::string first_loss_;
  error failure_;
  bool is_leaving_ = false;

  /// When to ask the peers next if the call is still running.
  clock::time_point next_word_at_;
  std::chrono::milliseconds word_interval_{0};
  /// Sleeps while calls are short: one wake-up covers many of them.
  std::thread late_calls_;
  std::condition_variable late_calls_woken_;
  bool is_asleep_ = false;
};

} // namespace troupe::collectives

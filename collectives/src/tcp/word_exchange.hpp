#pragma once

#include "tcp/channel.hpp"
#include "tcp/wake_event.hpp"
#include "transport/call_agreement.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace troupe::collectives::tcp {

/// Exchanges words about calls between the ranks of a group: which call each is in, and that two calls contradict each
/// other. Uses separate connections, so that no word waits behind a message. Its thread sleeps until a peer's word
/// arrives, and answers even while the caller is busy. It also keeps the group's first failure, and ends all
/// connections with it.
///
/// From any thread, except where the caller's thread is named.
class word_exchange {
 public:
  using clock = std::chrono::steady_clock;

  /// `streams`, by rank, are null for this rank and ranks without a connection. `message_sockets` are ended, not
  /// closed, with the first failure; their owner keeps them open until `stop` has returned. Throws `exception` or
  /// `std::system_error` if the process has no descriptor or thread left.
  word_exchange(call_agreement agreement, std::vector<std::unique_ptr<channel>> streams,
                std::vector<int> message_sockets);
  word_exchange(const word_exchange&) = delete;
  word_exchange& operator=(const word_exchange&) = delete;
  ~word_exchange();

  // The caller's thread: its calls.
  [[nodiscard]] expected<void> begin(const call_record& call, clock::time_point now);
  void end(clock::time_point now);

  /// Asks all peers for their state, because the call takes long.
  void ask_all(clock::time_point now);

  /// A message of this call has begun to arrive. True if it contradicts this rank's calls; all peers are then notified.
  [[nodiscard]] bool see(std::uint32_t peer, const call_record& theirs, clock::time_point now);

  /// Whether `trouble` may return an error. Without a lock.
  [[nodiscard]] bool has_news() const noexcept { return has_news_.load(std::memory_order_acquire); }

  /// The error that ends the running call, of kind `none` if there is none: the first failure, or a mismatch.
  [[nodiscard]] error trouble() const;

  /// The same, if the call needs a peer that is lost.
  [[nodiscard]] error loss(std::vector<std::uint32_t> lost, const std::string& why) const;

  /// The peers that have not answered for this long, or had not when their connections ended.
  [[nodiscard]] std::vector<std::uint32_t> unanswering(std::chrono::nanoseconds at_least, clock::time_point now) const;

  /// This process may have missed answers.
  void excuse_unanswering(clock::time_point now);

  /// The error of a call that needs these ranks, which do not answer.
  [[nodiscard]] error silence(const std::vector<std::uint32_t>& peers, std::chrono::nanoseconds limit) const;

  /// The error of a call that waits for these ranks at its deadline.
  [[nodiscard]] error lateness(const std::vector<std::uint32_t>& missing, clock::time_point now) const;

  /// Keeps the first reason, ends all connections and the call, and returns the first reason. After a mismatch, waits
  /// until the peers know of it. The caller's thread.
  [[nodiscard]] error give_up(error reason);

  /// Keeps the first reason, interrupts the caller, and ends all connections.
  void abort(error reason) noexcept;

  /// Readable when the caller, which sleeps, should look for trouble.
  [[nodiscard]] const wake_event& caller_event() const noexcept { return caller_woken_; }

  /// The running call, or the last one, with what is known of the peers. `is_done` says whether the call needs nothing
  /// more from a peer.
  [[nodiscard]] flight_record record(std::span<const std::atomic<std::uint32_t>> open_messages) const;

  /// Ends the thread. True if the group has not failed.
  bool stop();

 private:
  /// The connection to one peer.
  struct link {
    std::unique_ptr<channel> stream;
    /// Of a word that has arrived in part.
    std::array<std::byte, sizeof(call_word)> incoming;
    std::size_t incoming_bytes = 0;
    /// Bytes that the socket has not taken.
    std::vector<std::byte> unsent;
    /// When the connection ended.
    std::optional<clock::time_point> lost_at;
  };

  void run();

  // With the lock held:
  void tell(std::uint32_t peer, std::uint32_t flags, clock::time_point now);
  void tell_all(std::uint32_t flags, clock::time_point now);
  void flush(std::uint32_t peer);
  void listen_to(std::uint32_t peer);
  void hear(std::uint32_t peer, const call_word& word);
  void lose(std::uint32_t peer);
  void announce_mismatch(clock::time_point now);
  void fail_once(error reason) noexcept;
  [[nodiscard]] bool has_failed() const noexcept { return failure_.code != errc::none; }
  [[nodiscard]] bool do_all_know() const;

  mutable std::mutex mutex_;
  /// Notified when a word arrives or something ends.
  std::condition_variable changed_;
  call_agreement agreement_;
  std::vector<link> links_;
  const std::vector<int> message_sockets_;
  error failure_;
  std::optional<clock::time_point> failed_at_;
  bool is_stopping_ = false;
  std::atomic<bool> has_news_{false};

  wake_event caller_woken_;
  wake_event thread_woken_;
  std::thread thread_;
};

} // namespace troupe::collectives::tcp

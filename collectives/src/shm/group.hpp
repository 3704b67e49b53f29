#pragma once

#include "shm/members.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

namespace troupe::collectives {

/// One rank's view of the ranks on its host: their memory, and rendezvous with them. Used by one thread, except for
/// `abort`, `record` and const members. The first failure is final.
///
/// At a rendezvous, each rank increments the count in its control block and waits for the others' counts. A rank that
/// has passed it sees everything that the others wrote before they reached it.
class shm_group {
 public:
  [[nodiscard]] static expected<std::shared_ptr<shm_group>> connect(const shm_options& options,
                                                                    const descriptor_exchange& exchange);
  shm_group(const shm_group&) = delete;
  shm_group& operator=(const shm_group&) = delete;

  /// No call follows: peers that still wait for this rank fail. Results stay readable.
  void leave() noexcept { members_->leave(); }

  [[nodiscard]] std::uint32_t rank() const noexcept { return members_->rank(); }
  [[nodiscard]] std::uint32_t size() const noexcept { return members_->size(); }
  [[nodiscard]] shm_members& members() noexcept { return *members_; }
  /// Whether results are mapped writable: see `shm_options`.
  [[nodiscard]] bool has_results_for_devices() const noexcept { return has_results_for_devices_; }
  /// Processors available to this process, per rank; 0 if ranks share them.
  [[nodiscard]] std::uint32_t cores_per_rank() const noexcept { return cores_per_rank_; }

  void set_deadline(std::chrono::milliseconds deadline) noexcept { deadline_ = deadline; }
  [[nodiscard]] expected<void> begin(const call_record& call);
  void end();

  /// Where this rank writes what the next rendezvous is to show.
  [[nodiscard]] shm::posting& next_posting() noexcept;
  [[nodiscard]] std::byte* next_slot() noexcept;

  /// Arrives at the next rendezvous.
  void arrive();
  /// Waits for the others at the last rendezvous that this rank arrived at.
  [[nodiscard]] expected<void> wait_for_all();
  [[nodiscard]] expected<void> wait_for(std::uint32_t peer);
  /// `arrive` and `wait_for_all` with a posting. Fails with `errc::mismatch` if a peer makes another call.
  [[nodiscard]] expected<void> post(const call_record& call);
  /// The same with words, at most `shm::max_words`: each becomes its maximum over all ranks.
  [[nodiscard]] expected<void> post_maximum(const call_record& call, std::span<std::uint64_t> words);

  /// A rank's posting of the last `post`; valid until the next but one.
  [[nodiscard]] const shm::posting& posting_of(std::uint32_t rank) const noexcept;
  [[nodiscard]] const std::byte* slot_of(std::uint32_t rank) const noexcept;

  /// Sleeps until `word`, one of `peer`'s futexes, differs from `seen`; a few milliseconds at most. Call it in a loop
  /// after spinning in vain.
  [[nodiscard]] expected<void> sleep_on(std::uint32_t peer, const std::atomic<std::uint32_t>& word, std::uint32_t seen);
  /// Call after changing one of this rank's futexes on which `peer` may sleep.
  void wake(std::uint32_t peer, const std::atomic<std::uint32_t>& word) noexcept;
  /// Spins or yields once between two checks of `peer`; returns false when it is time to sleep.
  [[nodiscard]] bool spin(std::uint32_t peer, std::uint32_t& looks) const noexcept;

  void abort(error reason) noexcept;
  [[nodiscard]] expected<void> fail_with(error reason);
  [[nodiscard]] expected<void> state() const;
  [[nodiscard]] bool has_failed() const noexcept { return has_failed_.load(std::memory_order_acquire); }
  [[nodiscard]] flight_record record() const;

 private:
  shm_group(const shm_options& options, std::unique_ptr<shm_members> members);

  [[nodiscard]] bool has_met(std::uint32_t peer) const noexcept;
  expected<void> check_deadline(std::uint32_t peer);
  expected<void> check_peers(std::uint32_t waits_for, const std::atomic<std::uint32_t>& word, std::uint32_t seen);
  expected<void> check_calls();
  expected<void> check_calls_of(std::uint32_t peer);
  expected<void> check_crossing(std::uint32_t peer, const std::atomic<std::uint32_t>& word, std::uint32_t seen);
  [[nodiscard]] error mismatch_with(std::uint32_t peer, const call_record& theirs, const call_record& mine) const;
  [[nodiscard]] std::string where() const;

  const std::unique_ptr<shm_members> members_;
  shm::control& own_;
  const std::uint32_t cores_per_rank_;
  const bool has_results_for_devices_;
  std::chrono::milliseconds deadline_;

  /// Rendezvous that this rank has reached.
  std::uint32_t rendezvous_count_ = 0;
  /// Postings made by this rank.
  std::uint32_t postings_ = 0;
  /// Digest of the collective calls that this rank has begun.
  std::uint64_t history_ = 0;
  std::chrono::steady_clock::time_point ends_at_;

  std::atomic<bool> has_failed_{false};
  /// Guards everything below.
  mutable std::mutex mutex_;
  error failure_;
  call_record call_;
  bool is_under_way_ = false;
  std::chrono::steady_clock::time_point began_;
  std::chrono::nanoseconds took_{0};
};

} // namespace troupe::collectives

#pragma once

#include "shm/control.hpp"

#include <troupe/collectives/shared_pool.hpp>
#include <troupe/collectives/shm_communicator.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace troupe::collectives {

/// A file of another process, mapped for reading.
class mapped_file {
 public:
  mapped_file() = default;
  [[nodiscard]] static expected<mapped_file> make(unique_fd fd);
  mapped_file(mapped_file&& other) noexcept;
  mapped_file& operator=(mapped_file&& other) noexcept;
  ~mapped_file();

  [[nodiscard]] const std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  unique_fd fd_;
  const std::byte* data_ = nullptr;
  std::uint64_t size_bytes_ = 0;
};

/// One rank's view of the ranks of its host: their memory, and rendezvous with them. Used by one thread, except for
/// `abort`, `record` and what is const. The first failure is final.
///
/// A rendezvous is a point that all ranks come to: each counts its own in its control block and waits for the others'
/// counts. Everything written before a rank comes is seen by those who have met it.
class shm_group {
 public:
  [[nodiscard]] static expected<std::shared_ptr<shm_group>> connect(const shm_options& options,
                                                                    const descriptor_exchange& exchange);
  shm_group(const shm_group&) = delete;
  shm_group& operator=(const shm_group&) = delete;

  ~shm_group();

  /// No call follows: peers that still wait for this rank fail. What was reduced can still be looked at.
  void leave() noexcept;

  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(members_.size()); }

  /// Of this process, for its life.
  [[nodiscard]] shared_pool& process_pool() noexcept { return *process_pool_; }
  /// Of this rank in this generation. What a peer may look at after a call is never given back to it.
  [[nodiscard]] const std::shared_ptr<shared_pool>& generation_pool() const noexcept { return generation_pool_; }

  /// The begins of a rank's files, also of this rank's own.
  [[nodiscard]] const std::byte* process_memory(std::uint32_t rank) const noexcept;
  [[nodiscard]] const std::byte* generation_memory(std::uint32_t rank) const noexcept;
  [[nodiscard]] int generation_fd(std::uint32_t rank) const noexcept;
  /// Whether results are mapped as if for writing: see `shm_options`.
  [[nodiscard]] bool has_results_for_devices() const noexcept { return has_results_for_devices_; }
  /// Of those that this process may use, for each rank; 0 where ranks share them.
  [[nodiscard]] std::uint32_t cores_per_rank() const noexcept { return cores_per_rank_; }
  [[nodiscard]] const shm::control& control_of(std::uint32_t rank) const noexcept { return *members_[rank].control; }
  [[nodiscard]] shm::control& own_control() noexcept { return *own_; }

  // -- calls
  // --------------------------------------------------------------------------------------------------------------

  void set_deadline(std::chrono::milliseconds deadline) noexcept { deadline_ = deadline; }
  [[nodiscard]] expected<void> begin(const call_record& call);
  void end();

  /// Where this rank writes what the next rendezvous is to see.
  [[nodiscard]] shm::posting& next_posting() noexcept;
  [[nodiscard]] std::byte* next_slot() noexcept;

  /// Comes to the next rendezvous.
  void arrive();
  /// Waits for the others to come to the last rendezvous that this rank has come to.
  [[nodiscard]] expected<void> wait_for_all();
  [[nodiscard]] expected<void> wait_for(std::uint32_t peer);
  /// `arrive` and `wait_for_all` for a rendezvous with a posting; fails with `errc::mismatch` if a peer makes another
  /// call.
  [[nodiscard]] expected<void> post(const call_record& call);

  /// What a rank has posted for the rendezvous of the last `post`, until the next but one.
  [[nodiscard]] const shm::posting& posting_of(std::uint32_t rank) const noexcept;
  [[nodiscard]] const std::byte* slot_of(std::uint32_t rank) const noexcept;

  /// Sleeps until `word`, one of `peer`'s futexes, is no longer `seen`; at most some milliseconds. To be called in a
  /// loop by those who have spun in vain.
  [[nodiscard]] expected<void> sleep_on(std::uint32_t peer, const std::atomic<std::uint32_t>& word, std::uint32_t seen);
  /// After a change of one of this rank's futexes that `peer` may sleep on.
  void wake(std::uint32_t peer, const std::atomic<std::uint32_t>& word) noexcept;
  /// One more look in vain at what `peer` does: spins, or yields; false when it is time to sleep.
  [[nodiscard]] bool spin(std::uint32_t peer, std::uint32_t& looks) const noexcept;

  // -- failure
  // ------------------------------------------------------------------------------------------------------------

  void abort(error reason) noexcept;
  [[nodiscard]] expected<void> fail_with(error reason);
  [[nodiscard]] expected<void> state() const;
  [[nodiscard]] bool has_failed() const noexcept { return has_failed_.load(std::memory_order_acquire); }
  [[nodiscard]] flight_record record() const;

 private:
  struct member {
    mapped_file generation_file;
    mapped_file process_file;
    unique_fd process;
    const shm::control* control = nullptr;
  };

  shm_group(const shm_options& options, std::shared_ptr<shared_pool> generation_pool, shm::control* own);

  expected<void> map_members(std::vector<std::vector<unique_fd>> descriptors);
  [[nodiscard]] bool has_met(std::uint32_t peer) const noexcept;
  expected<void> check_deadline(std::uint32_t peer);
  expected<void> check_peers(std::uint32_t waits_for, const std::atomic<std::uint32_t>& word, std::uint32_t seen);
  expected<void> check_calls();
  expected<void> check_calls_of(std::uint32_t peer);
  expected<void> check_crossing(std::uint32_t peer, const std::atomic<std::uint32_t>& word, std::uint32_t seen);
  [[nodiscard]] call_record call_of(std::uint32_t peer) const noexcept;
  [[nodiscard]] call_record call_of(std::uint32_t peer, std::uint64_t sequence) const noexcept;
  [[nodiscard]] std::uint64_t calls_of_all(std::uint32_t peer) const noexcept;
  [[nodiscard]] bool is_gone(std::uint32_t peer) const;
  [[nodiscard]] std::string where() const;
  [[nodiscard]] rank_id name_of(std::uint32_t rank) const noexcept;
  [[nodiscard]] std::string named(std::uint32_t rank) const;
  void wake_everybody() noexcept;

  const std::uint32_t rank_;
  const generation_id generation_;
  std::chrono::milliseconds deadline_;
  const std::uint32_t cores_per_rank_;
  const std::vector<rank_id> names_;
  const bool has_results_for_devices_;
  const std::shared_ptr<shared_pool> process_pool_;
  const std::shared_ptr<shared_pool> generation_pool_;
  shm::control* const own_;
  std::vector<member> members_;

  /// Meetings that this rank has come to.
  std::uint32_t rendezvous_count_ = 0;
  /// Postings that this rank has made.
  std::uint32_t postings_ = 0;
  /// Digest of the calls of all that this rank has begun.
  std::uint64_t history_ = 0;
  std::chrono::steady_clock::time_point ends_at_;

  std::atomic<bool> has_failed_{false};
  /// Guards what follows.
  mutable std::mutex mutex_;
  error failure_;
  call_record call_;
  bool is_under_way_ = false;
  std::chrono::steady_clock::time_point began_;
  std::chrono::nanoseconds took_{0};
};

} // namespace troupe::collectives

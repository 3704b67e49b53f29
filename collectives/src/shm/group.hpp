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

/// Another process's file, mapped read-only.
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

/// One rank's view of the ranks on its host: their memory, and rendezvous with them. Used by one thread, except for
/// `abort`, `record` and const members. The first failure is final.
///
/// A rendezvous is a point that all ranks reach: each counts its own in its control block and waits for the others'
/// counts. A rank that has passed it sees everything that the others wrote before they reached it.
class shm_group {
 public:
  [[nodiscard]] static expected<std::shared_ptr<shm_group>> connect(const shm_options& options,
                                                                    const descriptor_exchange& exchange);
  shm_group(const shm_group&) = delete;
  shm_group& operator=(const shm_group&) = delete;

  ~shm_group();

  /// No call follows: peers that still wait for this rank fail. Results stay readable.
  void leave() noexcept;

  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(members_.size()); }

  /// This process's pool, for its lifetime.
  [[nodiscard]] shared_pool& process_pool() noexcept { return *process_pool_; }
  /// This rank's pool in this generation. Memory that a peer may read after a call is never returned to it.
  [[nodiscard]] const std::shared_ptr<shared_pool>& generation_pool() const noexcept { return generation_pool_; }

  /// The start of a rank's files; also valid for this rank.
  [[nodiscard]] const std::byte* process_memory(std::uint32_t rank) const noexcept;
  [[nodiscard]] const std::byte* generation_memory(std::uint32_t rank) const noexcept;
  [[nodiscard]] int generation_fd(std::uint32_t rank) const noexcept;
  /// Whether results are mapped writable: see `shm_options`.
  [[nodiscard]] bool has_results_for_devices() const noexcept { return has_results_for_devices_; }
  /// Processors available to this process, per rank; 0 if ranks share them.
  [[nodiscard]] std::uint32_t cores_per_rank() const noexcept { return cores_per_rank_; }
  [[nodiscard]] const shm::control& control_of(std::uint32_t rank) const noexcept { return *members_[rank].control; }
  [[nodiscard]] shm::control& own_control() noexcept { return *own_; }

  // -- calls
  // --------------------------------------------------------------------------------------------------------------

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

  /// What a rank posted for the last `post`; valid until the next but one.
  [[nodiscard]] const shm::posting& posting_of(std::uint32_t rank) const noexcept;
  [[nodiscard]] const std::byte* slot_of(std::uint32_t rank) const noexcept;

  /// Sleeps until `word`, one of `peer`'s futexes, differs from `seen`; a few milliseconds at most. Call it in a loop
  /// after spinning in vain.
  [[nodiscard]] expected<void> sleep_on(std::uint32_t peer, const std::atomic<std::uint32_t>& word, std::uint32_t seen);
  /// Call after changing one of this rank's futexes on which `peer` may sleep.
  void wake(std::uint32_t peer, const std::atomic<std::uint32_t>& word) noexcept;
  /// Spins or yields once between two checks of `peer`; returns false when it is time to sleep.
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
  [[nodiscard]] std::uint64_t collective_calls(std::uint32_t peer) const noexcept;
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

#pragma once

#include "nccl/library.hpp"
#include "nccl/memory.hpp"

#include <troupe/collectives/hang_policy.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace troupe::collectives::nccl {

/// Aborts a communicator without running work. Returns after `limit` even if NCCL hangs.
void abort_idle(std::shared_ptr<const library> api, std::shared_ptr<device> where, comm group,
                std::chrono::milliseconds limit) noexcept;

/// Owns one communicator until a thread takes it over to end it. After `give_up`, a separate thread ends the
/// communicator, revoked if possible. From any thread, except for `own` and destruction.
class owned_comm {
 public:
  /// `who` names the group in the message of a process that must end.
  owned_comm(std::shared_ptr<const library> api, std::shared_ptr<device> where, hang_policy on_hang, std::string who);
  owned_comm(const owned_comm&) = delete;
  owned_comm& operator=(const owned_comm&) = delete;

  /// Aborts a communicator that is still here: no new group was made from it.
  ~owned_comm();

  /// Called once at most.
  void own(comm group);

  /// The communicator, or null once it is taken. Every NCCL call holds the lock: none of them blocks, and the
  /// communicator cannot be freed meanwhile.
  struct locked {
    std::unique_lock<std::mutex> lock;
    comm group;
  };
  [[nodiscard]] locked lock() {
    auto held = std::unique_lock{comm_mutex_};
    return {std::move(held), comm_};
  }

  /// Hands the communicator over without its memory's registrations; null if there is none.
  [[nodiscard]] comm take() noexcept;

  /// Ends the communicator when all work is done: the other ranks leave too, or have left.
  void leave() noexcept;

  /// Starts to end the communicator while work may be running. Returns at once.
  void give_up() noexcept;

  enum class state : std::uint8_t {
    owned,
    /// `give_up` was called, and its thread ends the communicator.
    giving_up,
    /// This object ends, without `give_up`.
    ending,
    let_go,
    revoked,
    process_ends,
  };
  /// Returns the state after `give_up` has run its course. Returns nothing, at once, if nothing was ever owned.
  [[nodiscard]] std::optional<state> wait_until_let_go() noexcept;
  [[nodiscard]] bool is_revoked() noexcept;

  [[nodiscard]] nccl_memory& memory() noexcept { return *memory_; }

 private:
  using clock = std::chrono::steady_clock;

  [[nodiscard]] comm release() noexcept;
  void watch();
  [[nodiscard]] state escalate_abort();
  [[nodiscard]] bool comes_to_rest(comm group) noexcept;
  [[nodiscard]] bool lock_before(clock::time_point ends_at) noexcept;

  const std::shared_ptr<const library> api_;
  const std::shared_ptr<device> where_;
  const std::shared_ptr<nccl_memory> memory_;
  const hang_policy on_hang_;
  const std::string who_;

  std::mutex comm_mutex_;
  comm comm_ = nullptr;

  std::mutex watch_mutex_;
  std::condition_variable watch_changed_;
  state state_ = state::owned;
  std::thread watchdog_;
};

} // namespace troupe::collectives::nccl

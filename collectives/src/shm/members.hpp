#pragma once

#include "shm/control.hpp"

#include <troupe/collectives/shared_pool.hpp>
#include <troupe/collectives/shm_communicator.hpp>

#include <cstdint>
#include <memory>
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

/// The ranks of one host, with their memory, control blocks and processes. Constant until its destruction, which peers
/// see as this rank's leaving.
class shm_members {
 public:
  [[nodiscard]] static expected<std::unique_ptr<shm_members>> connect(const shm_options& options,
                                                                      const descriptor_exchange& exchange);
  shm_members(const shm_members&) = delete;
  shm_members& operator=(const shm_members&) = delete;
  ~shm_members() { leave(); }

  /// Peers that wait for this rank fail from now on.
  void leave() noexcept;
  /// Wakes all that sleep on a futex of this rank or because of it, also this rank's own thread.
  void wake_everybody() noexcept;

  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(members_.size()); }
  [[nodiscard]] generation_id generation() const noexcept { return generation_; }

  /// This process's pool, for its lifetime.
  [[nodiscard]] shared_pool& process_pool() noexcept { return *process_pool_; }
  /// This rank's pool in this generation. Memory that a peer may read after a call is never returned to it.
  [[nodiscard]] shared_pool& generation_pool() noexcept { return *generation_pool_; }

  /// The start of a peer's process file.
  [[nodiscard]] const std::byte* process_memory(std::uint32_t peer) const noexcept {
    return members_[peer].process_file.data();
  }
  /// The start of a rank's generation file, and the file; also of this rank.
  [[nodiscard]] const std::byte* generation_memory(std::uint32_t rank) const noexcept {
    return reinterpret_cast<const std::byte*>(members_[rank].control);
  }
  [[nodiscard]] int generation_fd(std::uint32_t rank) const noexcept {
    return rank == rank_ ? generation_pool_->fd() : members_[rank].generation_file.fd();
  }
  [[nodiscard]] const shm::control& control_of(std::uint32_t rank) const noexcept { return *members_[rank].control; }
  [[nodiscard]] shm::control& own_control() noexcept { return *own_; }

  /// Whether a peer's process has ended.
  [[nodiscard]] bool is_gone(std::uint32_t peer) const;

  [[nodiscard]] rank_id name_of(std::uint32_t rank) const noexcept {
    return names_.empty() ? rank_id{rank} : names_[rank];
  }
  /// "rank 3 of 4, generation 2", and "rank 3, generation 2" if the group is part of a larger one.
  [[nodiscard]] std::string describe() const;

 private:
  struct member {
    mapped_file generation_file;
    mapped_file process_file;
    unique_fd process;
    const shm::control* control = nullptr;
  };

  shm_members(const shm_options& options, std::shared_ptr<shared_pool> generation_pool, shm::control* own);
  expected<void> map(std::vector<std::vector<unique_fd>> descriptors);

  const std::uint32_t rank_;
  const generation_id generation_;
  const std::vector<rank_id> names_;
  const std::shared_ptr<shared_pool> process_pool_;
  const std::shared_ptr<shared_pool> generation_pool_;
  shm::control* const own_;
  std::vector<member> members_;
};

} // namespace troupe::collectives

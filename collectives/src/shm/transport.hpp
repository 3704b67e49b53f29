#pragma once

#include "shm/group.hpp"
#include "transport/transport.hpp"

#include <deque>
#include <memory>
#include <vector>

namespace troupe::collectives {

/// Messages between ranks of one host. The sender copies into memory that the receiver can read, and the receiver
/// copies out. The messages of a collective call never wait for their receiver; those of `communicator::send` wait
/// while it has too many bytes to take.
class shm_transport final : public transport {
 public:
  explicit shm_transport(std::shared_ptr<shm_group> group);
  ~shm_transport() override;

  std::uint32_t rank() const noexcept override { return group_->rank(); }
  std::uint32_t world_size() const noexcept override { return group_->size(); }
  flight_record record() const override { return group_->record(); }
  void set_deadline(std::chrono::milliseconds deadline) noexcept override { group_->set_deadline(deadline); }
  expected<void> begin(const call_record& call) override { return group_->begin(call); }
  ticket send(std::uint32_t peer, std::uint64_t tag, const std::byte* data, std::size_t size_bytes) override;
  ticket receive(std::uint32_t peer, std::uint64_t tag, std::byte* data, std::size_t size_bytes) override;
  expected<void> wait(ticket message) override;
  expected<void> finish() override;
  void abort(error reason) noexcept override { group_->abort(std::move(reason)); }

 private:
  /// The ticket of all sends.
  static constexpr ticket is_sent = SIZE_MAX;

  /// A posted receive; sends are complete when posted.
  struct pending {
    std::uint32_t peer = 0;
    std::uint64_t tag = 0;
    std::byte* data = nullptr;
    std::size_t size_bytes = 0;
    bool is_done = false;
  };

  /// A message in the peer's memory.
  struct arrival {
    shm::message message;
    bool is_taken = false;
  };

  struct link {
    /// Messages to the peer that it may not have taken yet, in posting order.
    struct outgoing {
      void* block = nullptr;
      std::size_t size_bytes = 0;
    };
    std::deque<outgoing> sent;
    std::uint64_t sent_bytes = 0;
    std::uint32_t posted = 0;
    std::uint32_t released = 0;
    /// Messages from the peer, seen but not counted as taken.
    std::deque<arrival> arrived;
    std::uint32_t seen = 0;
  };

  void release_taken(std::uint32_t peer);
  [[nodiscard]] static bool must_wait(const link& to, std::uint64_t tag, std::size_t size_bytes) noexcept;
  void look_for_arrivals(std::uint32_t peer);
  void take(pending& receive);
  expected<void> check_sizes(const pending& wanted);
  void drop_all();

  std::shared_ptr<shm_group> group_;
  std::vector<link> links_;
  std::vector<pending> pending_;
};

} // namespace troupe::collectives

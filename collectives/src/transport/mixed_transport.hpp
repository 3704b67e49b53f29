#pragma once

#include "shm/transport.hpp"
#include "transport/transport.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace troupe::collectives {

/// Messages over shared memory to the ranks of this host, and over another transport to all others. The messages of a
/// collective call never wait for their receiver in shared memory, so waiting on one transport does not block the
/// other.
class mixed_transport final : public transport {
 public:
  /// `local_ranks` are the ranks of this host, in the order in which `local` numbers them.
  mixed_transport(std::unique_ptr<transport> remote, std::unique_ptr<shm_transport> local,
                  const std::vector<std::uint32_t>& local_ranks);

  std::uint32_t rank() const noexcept override { return remote_->rank(); }
  std::uint32_t world_size() const noexcept override { return remote_->world_size(); }
  /// Between ranks that are all on different hosts. Other messages are not cut: shared memory has its own limit of
  /// messages on their way.
  [[nodiscard]] std::uint64_t piece_bytes_between_hosts() const noexcept { return remote_->piece_bytes(); }
  std::chrono::nanoseconds latency() const noexcept override { return remote_->latency(); }
  flight_record record() const override;
  /// Ranks of other hosts only: a network fault does not separate ranks of one host.
  std::vector<rank_id> unanswering() const override { return remote_->unanswering(); }
  void set_deadline(std::chrono::milliseconds deadline) noexcept override;
  expected<void> begin(const call_record& call) override;
  ticket send(std::uint32_t peer, std::uint64_t tag, const std::byte* data, std::size_t size_bytes) override;
  ticket receive(std::uint32_t peer, std::uint64_t tag, std::byte* data, std::size_t size_bytes) override;
  expected<void> wait(ticket message) override;
  expected<void> finish() override;
  void abort(error reason) noexcept override;

 private:
  static constexpr std::uint32_t not_here = UINT32_MAX;

  struct posted {
    transport* by = nullptr;
    ticket message = 0;
  };

  /// Passes a failure of one transport to the other, so that its peers are notified too.
  expected<void> checked(expected<void> result);

  std::unique_ptr<transport> remote_;
  std::unique_ptr<shm_transport> local_;
  /// Each rank's index in `local_`, or `not_here`.
  std::vector<std::uint32_t> local_of_;
  std::vector<posted> posted_;
};

} // namespace troupe::collectives

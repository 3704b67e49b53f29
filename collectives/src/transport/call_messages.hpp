#pragma once

#include "transport/transport.hpp"

#include <troupe/collectives/communicator.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace troupe::collectives {

/// The phases of one call, with separate tags.
inline constexpr std::uint32_t first_phase = 0;
inline constexpr std::uint32_t second_phase = 1;

/// The messages of one call after another: numbers the calls, tags their messages and counts what this rank sends.
class call_messages {
 public:
  explicit call_messages(std::unique_ptr<transport> underlying);

  [[nodiscard]] transport& underlying() noexcept { return *transport_; }
  [[nodiscard]] const transport& underlying() const noexcept { return *transport_; }
  [[nodiscard]] const call_record& call() const noexcept { return call_; }
  [[nodiscard]] const traffic& sent() const noexcept { return sent_; }

  /// Starts a call; sets its number.
  [[nodiscard]] expected<void> begin(const call_record& call);

  /// Posts a message of the running call. Messages between two ranks with the same phase and size arrive in order.
  void send(std::uint32_t peer, const std::byte* data, std::uint64_t size_bytes, std::uint32_t phase = first_phase);
  transport::ticket receive(std::uint32_t peer, std::byte* data, std::uint64_t size_bytes,
                            std::uint32_t phase = first_phase);

  [[nodiscard]] expected<void> wait(transport::ticket message) { return transport_->wait(message); }
  [[nodiscard]] expected<void> finish() { return transport_->finish(); }

 private:
  [[nodiscard]] std::uint64_t tag(std::uint64_t size_bytes, std::uint32_t phase) const noexcept;

  const std::unique_ptr<transport> transport_;
  traffic sent_;
  call_record call_;
  std::uint64_t sequence_ = 0;
  /// Both sides of a pair count their own messages: the numbers of collective calls agree across ranks, those of
  /// messages need not.
  std::vector<std::uint64_t> sent_to_;
  std::vector<std::uint64_t> received_from_;
};

} // namespace troupe::collectives

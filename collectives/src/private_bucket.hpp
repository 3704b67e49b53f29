#pragma once

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/collectives/communicator.hpp>

#include <utility>
#include <vector>

namespace troupe::collectives {

/// The result of a group whose members share no memory.
class private_bucket final : public reduced_bucket {
 public:
  private_bucket(std::size_t size_bytes, std::vector<byte_range> parts)
      : memory_(size_bytes), size_bytes_(size_bytes), parts_(std::move(parts)) {}

  std::span<const std::byte> bytes() const noexcept override { return memory_.bytes().first(size_bytes_); }
  std::span<const byte_range> parts() const noexcept override { return parts_; }
  [[nodiscard]] std::byte* data() noexcept { return memory_.data(); }

 private:
  aligned_buffer memory_;
  std::size_t size_bytes_;
  std::vector<byte_range> parts_;
};

} // namespace troupe::collectives

#pragma once

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/collectives/communicator.hpp>

#include <memory>
#include <utility>
#include <vector>

namespace troupe::collectives {

/// The result of a group whose members share no memory. On its own pages, so that it can be pinned.
class private_bucket final : public reduced_bucket {
 public:
  private_bucket(std::size_t size_bytes, std::vector<byte_range> parts)
      : memory_(size_bytes + 2 * page_bytes), size_bytes_(size_bytes), parts_(std::move(parts)) {
    void* data = memory_.data();
    auto room = memory_.size_bytes();
    data_ = static_cast<std::byte*>(std::align(page_bytes, size_bytes + page_bytes, data, room));
  }

  std::span<const std::byte> bytes() const noexcept override { return {data_, size_bytes_}; }
  std::span<const byte_range> parts() const noexcept override { return parts_; }
  [[nodiscard]] std::byte* data() noexcept { return data_; }

 private:
  static constexpr std::size_t page_bytes = 4096;

  aligned_buffer memory_;
  std::byte* data_ = nullptr;
  std::size_t size_bytes_;
  std::vector<byte_range> parts_;
};

} // namespace troupe::collectives

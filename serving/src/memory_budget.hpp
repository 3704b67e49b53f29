#pragma once

#include <atomic>
#include <cstdint>

namespace troupe::serving {

/// The bytes that the requests of all connections may hold together. Thread-safe.
class memory_budget {
 public:
  explicit memory_budget(std::uint64_t bytes) : bytes_(bytes), left_(bytes) {}

  [[nodiscard]] bool take(std::uint64_t bytes) noexcept {
    auto left = left_.load();
    while (left >= bytes)
      if (left_.compare_exchange_weak(left, left - bytes))
        return true;
    return false;
  }
  void give_back(std::uint64_t bytes) noexcept { left_ += bytes; }

  /// All that there is, taken or not.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  std::uint64_t bytes_;
  std::atomic<std::uint64_t> left_;
};

/// What one request holds of the budget, until it is over. Used by one thread.
class memory_share {
 public:
  explicit memory_share(memory_budget& budget) noexcept : budget_(budget) {}
  ~memory_share() { budget_.give_back(bytes_); }
  memory_share(const memory_share&) = delete;
  memory_share& operator=(const memory_share&) = delete;

  [[nodiscard]] bool grow(std::uint64_t bytes) noexcept {
    const auto is_granted = budget_.take(bytes);
    bytes_ += is_granted ? bytes : 0;
    return is_granted;
  }
  /// Never more than it has grown by.
  void shrink(std::uint64_t bytes) noexcept {
    bytes_ -= bytes;
    budget_.give_back(bytes);
  }

  /// Whether no other request has to end for so many bytes, beside those it has.
  [[nodiscard]] bool can_ever_grow(std::uint64_t bytes) const noexcept { return bytes <= budget_.bytes() - bytes_; }

 private:
  memory_budget& budget_;
  std::uint64_t bytes_ = 0;
};

} // namespace troupe::serving

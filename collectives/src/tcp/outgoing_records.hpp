#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <openssl/bio.h>

namespace troupe::collectives::tcp {

/// Collects records, so that the socket gets many of them in one call. Not thread-safe.
class outgoing_records {
 public:
  explicit outgoing_records(int socket) : socket_(socket) {}

  [[nodiscard]] bool has_room(std::size_t size_bytes) const noexcept { return size_ + size_bytes <= outgoing_bytes; }
  [[nodiscard]] bool is_empty() const noexcept { return size_ == 0; }

  void append(const char* data, std::size_t size_bytes) {
    std::memcpy(next(), data, size_bytes);
    extend(size_bytes);
  }

  /// Where the next record goes, and how much of it there is.
  [[nodiscard]] char* next() noexcept { return data_.get() + size_; }
  void extend(std::size_t size_bytes) noexcept { size_ += size_bytes; }

  /// 0, or the error number; EAGAIN if some remain.
  int flush();

 private:
  /// The size of one write to the socket.
  static constexpr std::size_t outgoing_bytes = 64 << 10;

  const int socket_;
  std::unique_ptr<char[]> data_ = std::make_unique_for_overwrite<char[]>(outgoing_bytes);
  /// The range that the socket has not taken yet.
  std::size_t begin_ = 0;
  std::size_t size_ = 0;
};

/// For BIOs that write to the `outgoing_records` in their data (`BIO_set_data`). They flush when those are full.
[[nodiscard]] const BIO_METHOD* record_writer();

} // namespace troupe::collectives::tcp

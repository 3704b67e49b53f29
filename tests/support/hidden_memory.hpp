#pragma once

#include <troupe/tensor_memory.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace troupe::testing {

/// A tensor's memory that behaves like device memory: its bytes have no address in this process, so that code that
/// bypasses the interface cannot reach them. It is an unnamed file without a mapping.
class hidden_memory : public tensor_memory {
 public:
  explicit hidden_memory(std::uint64_t size_bytes) : fd_(::memfd_create("hidden", MFD_CLOEXEC)), size_(size_bytes) {
    if (fd_ < 0 || ::ftruncate(fd_, static_cast<off_t>(size_bytes)) != 0)
      throw exception{errc::io_error, "cannot make hidden memory"};
  }
  hidden_memory(const hidden_memory&) = delete;
  hidden_memory& operator=(const hidden_memory&) = delete;
  ~hidden_memory() override { ::close(fd_); }

  std::uint64_t size_bytes() const noexcept override { return size_; }

  expected<void> read(std::uint64_t offset_bytes, std::span<std::byte> target) override {
    ++reads;
    if (trouble.code != errc::none)
      return fail(trouble);
    auto got = ::pread(fd_, target.data(), target.size(), static_cast<off_t>(offset_bytes));
    return is_all(offset_bytes, got, target.size());
  }

  expected<void> write(std::uint64_t offset_bytes, std::span<const std::byte> source) override {
    ++writes;
    if (trouble.code != errc::none)
      return fail(trouble);
    auto put = ::pwrite(fd_, source.data(), source.size(), static_cast<off_t>(offset_bytes));
    return is_all(offset_bytes, put, source.size());
  }

  std::shared_ptr<const void> prepare(std::span<std::byte> memory) override {
    prepared_bytes += memory.size();
    return {static_cast<const void*>(this), [this, size = memory.size()](const void*) { prepared_bytes -= size; }};
  }

  // The operations of kernels.

  template <class T>
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> result(size_ / sizeof(T));
    if (::pread(fd_, result.data(), size_, 0) != static_cast<ssize_t>(size_))
      throw exception{errc::io_error, "cannot read hidden memory"};
    return result;
  }

  template <class T>
  void assign(const std::vector<T>& values) {
    if (::pwrite(fd_, values.data(), size_, 0) != static_cast<ssize_t>(size_))
      throw exception{errc::io_error, "cannot write hidden memory"};
  }

  int reads = 0;
  int writes = 0;
  /// The size of the host memory that is prepared at present.
  std::size_t prepared_bytes = 0;
  /// If set, every read and write fails with it.
  error trouble;

 private:
  expected<void> is_all(std::uint64_t offset, ssize_t done, std::size_t wanted) const {
    if (offset + wanted > size_ || done != static_cast<ssize_t>(wanted))
      return fail(errc::internal, "the range is outside the hidden memory");
    return {};
  }

  int fd_;
  std::uint64_t size_;
};

} // namespace troupe::testing

#include "memory_limit.hpp"

#include <troupe/error.hpp>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <sys/mman.h>
#include <utility>

namespace troupe::bench {

namespace {

template <std::size_t N>
void sum(float* __restrict out, std::span<const float* const> slices, std::uint64_t elements) {
  std::array<const float*, N> x;
  std::copy_n(slices.begin(), N, x.begin());
  for (std::uint64_t i = 0; i < elements; ++i) {
    auto total = x[0][i];
    for (std::size_t k = 1; k < N; ++k)
      total += x[k][i];
    out[i] = total;
  }
}

} // namespace

void sum_slices(float* out, std::span<const float* const> slices, std::uint64_t elements) {
  switch (slices.size()) {
  case 1:
    return sum<1>(out, slices, elements);
  case 2:
    return sum<2>(out, slices, elements);
  case 4:
    return sum<4>(out, slices, elements);
  case 8:
    return sum<8>(out, slices, elements);
  default:
    throw std::invalid_argument{"the memory limit is measured for 1, 2, 4 or 8 ranks"};
  }
}

mapped_block::mapped_block(int fd, std::uint64_t offset, std::uint64_t size_bytes) : size_bytes_(size_bytes) {
  auto* data = ::mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(offset));
  if (data == MAP_FAILED)
    throw exception{system_error("mapping a peer's block")};
  data_ = static_cast<const std::byte*>(data);
}

mapped_block::mapped_block(mapped_block&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_bytes_(other.size_bytes_) {}

mapped_block::~mapped_block() {
  if (data_ != nullptr)
    ::munmap(const_cast<std::byte*>(data_), size_bytes_);
}

} // namespace troupe::bench

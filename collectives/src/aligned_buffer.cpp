#include <troupe/collectives/aligned_buffer.hpp>

#include <algorithm>

namespace troupe::collectives {

void aligned_buffer::reserve(std::size_t size_bytes) {
  if (size_bytes <= size_bytes_)
    return;
  bytes_.reset(static_cast<std::byte*>(::operator new[](size_bytes, std::align_val_t{alignment_bytes})));
  size_bytes_ = size_bytes;
  std::fill_n(bytes_.get(), size_bytes, std::byte{0});
}

} // namespace troupe::collectives

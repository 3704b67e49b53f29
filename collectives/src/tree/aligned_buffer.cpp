#include <troupe/collectives/aligned_buffer.hpp>

#include <algorithm>

namespace troupe::collectives {

void aligned_buffer::reserve(std::size_t wanted_bytes) {
  if (wanted_bytes <= size_bytes())
    return;
  auto* memory = bytes_.get_deleter().memory;
  auto* fresh = static_cast<std::byte*>(memory->allocate(wanted_bytes, alignment_bytes));
  bytes_ = {fresh, release{memory, wanted_bytes}};
  std::fill_n(fresh, wanted_bytes, std::byte{0});
}

} // namespace troupe::collectives

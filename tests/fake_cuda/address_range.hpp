#pragma once

#include <cstdint>

namespace fake_cuda {

/// Memory from `first` to before `end`.
struct address_range {
  std::uintptr_t first = 0;
  std::uintptr_t end = 0;
};

} // namespace fake_cuda

#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace troupe::testing {

/// Whether this process's mappings allow it to write all of these bytes.
inline bool may_write(const void* data, std::size_t size_bytes) {
  auto next = reinterpret_cast<std::uintptr_t>(data);
  const auto last = next + size_bytes;
  std::ifstream mappings{"/proc/self/maps"};
  for (std::string line; next < last && std::getline(mappings, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char access[5] = {};
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &begin, &end, access) != 3 || end <= next)
      continue;
    if (begin > next || access[1] != 'w')
      return false;
    next = end;
  }
  return next >= last;
}

} // namespace troupe::testing

#include <troupe/training/gradient_layout.hpp>

#include <doctest/doctest.h>

using namespace troupe::training;

TEST_CASE("the parts of a gradient follow each other, each on a 64-byte boundary") {
  gradient_layout layout;
  CHECK(layout.elements() == 0);
  std::uint64_t next = 0;
  for (std::uint64_t elements : {1, 16, 17, 0, 1000, 15}) {
    auto index = layout.add(elements);
    const auto& part = layout[index];
    CHECK(part.first == next);
    CHECK(part.first * sizeof(float) % 64 == 0);
    CHECK(part.elements == elements);
    CHECK(part.padded >= elements);
    CHECK(part.padded < elements + 16);
    next = part.first + part.padded;
    CHECK(layout.elements() == next);
  }
}

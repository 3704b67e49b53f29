#include <troupe/device_span.hpp>

#include <cstddef>
#include <doctest/doctest.h>
#include <ranges>
#include <span>
#include <type_traits>

using namespace troupe;

namespace {

template <class T>
concept dereferenced = requires(T x) {
  *x;
};
template <class T>
concept indexed = requires(T x) {
  x[0];
};
template <class T>
concept has_data = requires(T x) {
  x.data();
};

} // namespace

TEST_CASE("the host cannot dereference device memory") {
  using values = device_span<float>;
  static_assert(dereferenced<float*> && indexed<std::span<float>> && has_data<std::span<float>>);
  static_assert(!dereferenced<values> && !indexed<values> && !has_data<values> && !std::ranges::range<values>);
  static_assert(!std::is_convertible_v<values, std::span<float>> && !std::is_convertible_v<values, float*>);
  static_assert(!std::is_constructible_v<std::span<float>, values>);
  static_assert(std::is_convertible_v<values, device_span<const float>>);
  static_assert(!std::is_convertible_v<device_span<const float>, values>);
}

TEST_CASE("parts of device memory have their addresses and sizes") {
  alignas(double) std::byte memory[64];
  auto bytes = device_span{memory, sizeof(memory)};
  auto numbers = bytes.subspan(16).as<double>();
  CHECK(numbers.size() == 6);
  CHECK(numbers.size_bytes() == 48);
  CHECK(static_cast<void*>(numbers.address()) == memory + 16);
  CHECK(numbers.subspan(2, 1).address() == numbers.address() + 2);
  CHECK(numbers.subspan(2, 1).size() == 1);
  CHECK(numbers.first(3).size() == 3);
  CHECK(device_span<float>{}.empty());
}

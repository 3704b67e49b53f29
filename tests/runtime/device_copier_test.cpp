#include "worker/state/device_copier.hpp"

#include <doctest/doctest.h>
#include <fake_device.hpp>
#include <gpu.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

using namespace troupe;
using namespace troupe::runtime;
using troupe::collectives::device;
using troupe::collectives::device_memory;
using troupe::collectives::device_stream;
using troupe::collectives::testing::fake_device;

namespace {

constexpr std::size_t half = std::size_t{4} << 20;

std::vector<std::byte> pattern(std::size_t size, std::uint32_t seed) {
  std::vector<std::byte> result(size);
  for (auto& x : result)
    x = static_cast<std::byte>((seed = seed * 1664525u + 1013904223u) >> 24);
  return result;
}

/// What holds on a fake device and on a real one.
void check_copier(const std::shared_ptr<device>& where) {
  auto stream = value_or_throw(device_stream::make(where));
  auto copier = value_or_throw(device_copier::open(where, stream.handle()));
  auto memory = value_or_throw(device_memory::make(where, 3 * half + 1000));
  auto tensor = copier->tensor(memory.bytes());
  CHECK(tensor->size_bytes() == memory.size_bytes());
  for (std::size_t size : {std::size_t{0}, std::size_t{1}, half - 1, half, half + 1, 3 * half + 1000}) {
    CAPTURE(size);
    auto written = pattern(size, static_cast<std::uint32_t>(size));
    REQUIRE(tensor->write(memory.size_bytes() - size, written));
    std::vector<std::byte> got(size);
    REQUIRE(tensor->read(memory.size_bytes() - size, got));
    CHECK(got == written);
  }
  // What stands on the stream comes before a copy, in both directions.
  auto source = value_or_throw(collectives::pinned_memory::make(where, half));
  auto first = pattern(half, 1);
  std::ranges::copy(first, source.bytes().begin());
  for (int i = 0; i < 20; ++i) {
    REQUIRE(stream.copy(memory.address(), source.data(), half));
    std::vector<std::byte> got(half);
    REQUIRE(tensor->read(0, got));
    CHECK(got == first);
    auto second = pattern(half, 2);
    REQUIRE(stream.copy(memory.address(), source.data(), half));
    REQUIRE(tensor->write(0, second));
    REQUIRE(tensor->read(0, got));
    CHECK(got == second);
  }
  // Memory that was made ready takes the bytes without a stop on the way; what lies partly in it goes the other way.
  std::vector<std::byte> target(half + 8192);
  auto all = pattern(memory.size_bytes(), 3);
  REQUIRE(tensor->write(0, all));
  {
    auto ready = tensor->prepare(std::span{target}.first(half));
    CHECK(ready != nullptr);
    REQUIRE(tensor->read(5, std::span{target}.first(half)));
    CHECK(std::memcmp(target.data(), all.data() + 5, half) == 0);
    REQUIRE(tensor->read(7, target));
    CHECK(std::memcmp(target.data(), all.data() + 7, target.size()) == 0);
  }
  REQUIRE(tensor->read(9, target));
  CHECK(std::memcmp(target.data(), all.data() + 9, target.size()) == 0);
}

} // namespace

TEST_CASE("bytes come whole through the copier, after what the training function has begun") {
  for (std::uint32_t seed : {0u, 1u, 2u}) {
    CAPTURE(seed);
    fake_device::options options;
    options.seed = seed;
    check_copier(std::make_shared<fake_device>(options));
  }
}

TEST_CASE("the same on a GPU") {
  if (testing::has_gpu())
    check_copier(value_or_throw(collectives::open_device(0)));
}

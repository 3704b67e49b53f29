#include "device_cases.hpp"
#include "nccl/library.hpp"
#include "rank_group.hpp"

#include <troupe/collectives/nccl_group.hpp>
#include <troupe/collectives/staged_device_group.hpp>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <doctest/doctest.h>
#include <limits>
#include <thread>

// Runs on a real GPU. Without one, every case reports that it was skipped.

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

/// A GPU, or null after printing the reason.
std::shared_ptr<device> gpu(int index = 0) {
  auto opened = open_device(index);
  if (opened)
    return std::move(*opened);
  std::printf("SKIP: %s\n", opened.error().message.c_str());
  CHECK_FALSE(opened.error().message.empty());
  return nullptr;
}

void skip(const std::string& why) {
  std::printf("SKIP: %s\n", why.c_str());
  CHECK_FALSE(why.empty());
}

/// Words of which many are special values as floats of 16, 32 or 64 bits.
std::vector<std::byte> special_bytes(std::uint64_t size_bytes, std::uint32_t seed) {
  std::vector<std::byte> result(size_bytes);
  for (std::uint64_t i = 0; i < size_bytes / 8; ++i) {
    auto word = mix(seed, i);
    switch (word % 11) {
    case 0: // two f32 infinities of different signs
      word = 0x7f800000ff800000u;
      break;
    case 1: // NaNs with payloads
      word = word | 0x7fc0000000000000u | 0x7fc00001u;
      break;
    case 2: // subnormals
      word &= 0x800fffff807fffffu;
      break;
    case 3: // zeros of both signs
      word = 0x8000000000000000u;
      break;
    default:
      break;
    }
    std::memcpy(result.data() + i * 8, &word, 8);
  }
  return result;
}

class scene {
 public:
  explicit scene(std::shared_ptr<device> x) : where(std::move(x)), stream(value_or_throw(device_stream::make(where))) {}

  device_memory upload(std::span<const std::byte> bytes) {
    auto memory = value_or_throw(device_memory::make(where, std::max<std::size_t>(bytes.size(), 16)));
    auto pinned = value_or_throw(pinned_memory::make(where, std::max<std::size_t>(bytes.size(), 1)));
    std::ranges::copy(bytes, pinned.data());
    value_or_throw(stream.copy(memory.address(), pinned.data(), bytes.size()));
    value_or_throw(stream.synchronize());
    return memory;
  }

  std::vector<std::byte> result(const device_memory& memory, std::uint64_t size_bytes) {
    value_or_throw(stream.synchronize());
    return download(where, memory.bytes().first(size_bytes));
  }

  std::shared_ptr<device> where;
  device_stream stream;
};

/// One pass on the device and the same on the host.
void check_pass(scene& on, dtype type, reduce_op op, std::size_t count, std::uint64_t elements, bool is_final,
                std::uint64_t divisor) {
  INFO(to_string(type), " ", to_string(op), " of ", count, ", elements ", elements, ", final ", is_final, ", by ",
       divisor);
  const auto sum = sum_type(type);
  const auto bytes = elements * size_of(sum);
  std::vector<std::vector<std::byte>> operands;
  std::vector<device_memory> memory;
  std::vector<const std::byte*> pointers;
  for (std::size_t k = 0; k < count; ++k) {
    operands.push_back(special_bytes((bytes + 7) / 8 * 8, static_cast<std::uint32_t>(k + 1)));
    memory.push_back(on.upload(operands.back()));
    pointers.push_back(memory.back().address());
  }
  auto out = value_or_throw(device_memory::make(on.where, bytes + 16));
  device_reduction pass;
  pass.type = type;
  pass.op = op;
  pass.elements = elements;
  pass.operands = pointers;
  pass.out = out.address();
  pass.is_final = is_final;
  pass.divisor = divisor;
  value_or_throw(on.where->reduce(pass, on.stream.handle()));
  for (std::size_t width = count; width > 1; width /= 2)
    for (std::size_t i = 0; i < width / 2; ++i) {
      combine(sum, op, operands[2 * i].data(), operands[2 * i].data(), operands[2 * i + 1].data(), elements);
      operands[i] = operands[2 * i];
    }
  auto wanted = operands[0];
  wanted.resize(bytes);
  if (is_final) {
    divide(sum, wanted.data(), elements, divisor);
    if (sum != type) {
      std::vector<std::byte> rounded(elements * size_of(type));
      narrow(type, rounded.data(), wanted.data(), elements);
      wanted = rounded;
    }
  }
  CHECK(on.result(out, wanted.size()) == wanted);
}

/// Ranks as threads of this process, over NCCL.
template <class F>
auto over_nccl(const std::vector<std::shared_ptr<device>>& devices, F f) {
  const auto n = static_cast<std::uint32_t>(devices.size());
  static std::uint64_t generation = 0;
  const generation_id number{++generation};
  rendezvous<std::string> first{n};
  rendezvous<std::string> second{n};
  std::vector<decltype(f(std::declval<device_group&>()))> results(n);
  std::vector<std::string> errors(n);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < n; ++rank)
    threads.emplace_back([&, rank] {
      try {
        int calls = 0;
        nccl_options options;
        options.rank = rank_id{rank};
        options.world_size = n;
        options.generation = number;
        options.deadline = std::chrono::seconds{10};
        auto group = value_or_throw(make_nccl_group(
            devices[rank], std::move(options), [&](std::string mine) -> expected<std::vector<std::string>> {
              return (calls++ == 0 ? first : second).exchange(rank, std::move(mine));
            }));
        results[rank] = f(*group);
      } catch (const std::exception& reason) {
        errors[rank] = reason.what();
      }
    });
  for (auto& x : threads)
    x.join();
  for (const auto& x : errors)
    REQUIRE(x == "");
  return results;
}

void check_over_nccl(const std::vector<std::shared_ptr<device>>& devices) {
  const auto n = static_cast<std::uint32_t>(devices.size());
  for (const auto& layout : device_layouts()) {
    INFO("ranks ", n, ", bytes ", layout.size_bytes());
    const device_case x{layout, 13, even_ownership(13, n), 3, 16384};
    for (const auto& found : over_nccl(devices, [&](device_group& group) { return reduce_on_device(group, x); }))
      CHECK(found == reference_root(layout, 13, 3));
    for (const auto& found :
         over_nccl(devices, [&](device_group& group) { return reduce_fast_on_device(group, layout); }))
      CHECK(found == reference_fast(layout, n));
  }
}

} // namespace

TEST_CASE("kernels give the host's bits: types, operations, numbers of operands, ends that fill no access") {
  auto where = gpu();
  if (!where)
    return;
  scene on{where};
  for (auto type : {dtype::f32, dtype::f64, dtype::f16, dtype::bf16, dtype::i32, dtype::i64, dtype::u8}) {
    for (auto op : {reduce_op::sum, reduce_op::min, reduce_op::max, reduce_op::product})
      for (std::size_t count : {1u, 2u, 4u, 8u})
        check_pass(on, type, op, count, 4099, false, 1);
    for (std::size_t count : {1u, 2u, 8u})
      for (std::uint64_t divisor : {std::uint64_t{1}, std::uint64_t{3}, (std::uint64_t{1} << 40) + 1})
        check_pass(on, type, reduce_op::sum, count, 1027, true, divisor);
    for (std::uint64_t elements : {1u, 3u, 16u, 255u, 70'001u})
      check_pass(on, type, reduce_op::sum, 2, elements, true, 1);
  }
}

TEST_CASE("kernels widen every 16-bit float, and round f32 back, as the host does") {
  auto where = gpu();
  if (!where)
    return;
  scene on{where};
  for (auto type : {dtype::f16, dtype::bf16}) {
    std::vector<std::byte> halves(std::size_t{65536} * 2);
    for (std::uint32_t x = 0; x < 65536; ++x) {
      const auto half = static_cast<std::uint16_t>(x);
      std::memcpy(halves.data() + std::size_t{2} * x, &half, 2);
    }
    std::vector<std::byte> wanted(std::size_t{65536} * 4);
    widen(type, wanted.data(), halves.data(), 65536);
    auto in = on.upload(halves);
    auto out = value_or_throw(device_memory::make(where, wanted.size()));
    value_or_throw(where->widen(type, out.address(), in.address(), 65536, on.stream.handle()));
    CHECK(on.result(out, wanted.size()) == wanted);
    check_pass(on, type, reduce_op::sum, 1, 500'000, true, 1);
  }
}

TEST_CASE("alone on the device: the bits of the plain recursive sum") {
  auto where = gpu();
  if (!where)
    return;
  auto group = value_or_throw(make_self_device_group(where, generation_id{1}));
  for (const auto& layout : device_layouts())
    for (std::uint32_t shards : {1u, 3u, 8u, 13u, 32u}) {
      INFO("bytes ", layout.size_bytes(), ", shards ", shards);
      CHECK(reduce_on_device(*group, {layout, shards, {{0, shards}}, 3, 8192}) == reference_root(layout, shards, 3));
    }
}

TEST_CASE("ranks that share the device: the same bits through pinned memory, over every communicator of the host") {
  auto where = gpu();
  if (!where)
    return;
  for (auto kind : all_transports)
    for (std::uint32_t world_size : {2u, 3u, 4u})
      for (const auto& layout : device_layouts()) {
        INFO(to_string(kind), ", ranks ", world_size, ", bytes ", layout.size_bytes());
        const device_case x{layout, 13, even_ownership(13, world_size), 1, 8192};
        const auto results = group_of(kind, world_size).run([&](communicator& host) {
          return reduce_on_device(*value_or_throw(make_staged_device_group(where, host)), x);
        });
        for (const auto& found : results)
          CHECK(found == reference_root(layout, 13));
      }
}

TEST_CASE("one rank over NCCL") {
  auto where = gpu();
  if (!where)
    return;
  if (const auto found = find_nccl(); !found)
    return skip(found.error().message);
  check_over_nccl({where});
}

TEST_CASE("an out-of-memory error has the requested and the free bytes") {
  auto where = gpu();
  if (!where)
    return;
  const auto wanted = where->info().total_bytes * 2;
  const auto memory = device_memory::make(where, wanted);
  REQUIRE(!memory);
  INFO(memory.error().message);
  CHECK(memory.error().code == errc::unsatisfiable);
  for (const auto& part :
       {to_string(where->info()), std::to_string(wanted) + " bytes were asked for", std::string{"are free"}})
    CHECK(memory.error().message.find(part) != std::string::npos);
  // The device is unaffected.
  CHECK(device_memory::make(where, 1 << 20));
}

TEST_CASE("a stream waits for another's event") {
  auto where = gpu();
  if (!where)
    return;
  scene on{where};
  auto other = value_or_throw(device_stream::make(where, device::stream_priority::high));
  auto event = value_or_throw(device_event::make(where));
  const std::uint64_t size_bytes = 64 << 20;
  auto a = value_or_throw(device_memory::make(where, size_bytes));
  auto b = value_or_throw(device_memory::make(where, size_bytes));
  auto host = value_or_throw(pinned_memory::make(where, size_bytes));
  std::fill_n(host.data(), size_bytes, std::byte{7});
  for (int i = 0; i < 8; ++i)
    value_or_throw(on.stream.copy(a.address(), host.data(), size_bytes));
  value_or_throw(event.record(on.stream));
  value_or_throw(event.hold(other));
  value_or_throw(other.copy(b.address(), a.address(), size_bytes));
  value_or_throw(other.synchronize());
  CHECK(value_or_throw(event.has_completed()));
  CHECK(on.result(b, 4096) == std::vector<std::byte>(4096, std::byte{7}));
}

// Comes last: two ranks of one process on one device may block each other's allocations until the deadline.
TEST_CASE("two ranks over NCCL, on two GPUs, or on one where NCCL allows it") {
  auto where = gpu();
  if (!where)
    return;
  const auto library = nccl::open_library();
  if (!library)
    return skip(library.error().message);
  if (find_devices().value().size() > 1)
    return check_over_nccl({where, gpu(1)});
  if ((*library)->version < 23000)
    return skip("one GPU, and NCCL " + nccl::version_text((*library)->version) +
                " takes one rank on each (2.30 takes two)");
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  check_over_nccl({where, where});
}

#include "rank_group.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <doctest/doctest.h>
#include <numeric>
#include <set>

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

/// Every transport with every world size.
std::vector<std::pair<swept_transport, std::uint32_t>> groups() {
  std::vector<std::pair<swept_transport, std::uint32_t>> result;
  for (auto kind : all_transports)
    for (auto world_size : {1u, 2u, 3u, 4u, 7u, 8u})
      result.emplace_back(kind, world_size);
  return result;
}

std::vector<std::size_t> element_counts(std::uint32_t world_size) {
  return {0, 1, world_size - 1, world_size, 1000, 65537};
}

/// Distinct per rank and index, and small enough that products stay finite.
double value(std::uint32_t rank, std::size_t i) {
  return 1.0 + static_cast<double>((std::size_t{rank} * 31 + i * 7) % 101) / 128.0 * (rank % 2 == 0 ? 1.0 : -1.0);
}

double reference(reduce_op op, std::uint32_t world_size, std::size_t i) {
  auto result = value(0, i);
  for (std::uint32_t r = 1; r < world_size; ++r) {
    const auto x = value(r, i);
    switch (op) {
    case reduce_op::sum:
    case reduce_op::mean:
      result += x;
      break;
    case reduce_op::min:
      result = std::min(result, x);
      break;
    case reduce_op::max:
      result = std::max(result, x);
      break;
    case reduce_op::product:
      result *= x;
      break;
    }
  }
  return op == reduce_op::mean ? result / world_size : result;
}

template <class T>
std::vector<T> input(std::uint32_t rank, std::size_t n) {
  std::vector<T> result(n);
  for (std::size_t i = 0; i < n; ++i)
    result[i] = static_cast<T>(value(rank, i));
  return result;
}

constexpr reduce_op all_ops[] = {reduce_op::sum, reduce_op::mean, reduce_op::min, reduce_op::max, reduce_op::product};

template <class T>
bool is_near(const std::vector<T>& x, reduce_op op, std::uint32_t world_size, std::size_t first = 0) {
  const auto tolerance = world_size * static_cast<double>(std::numeric_limits<T>::epsilon()) * 4;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto expected_value = reference(op, world_size, first + i);
    if (std::abs(static_cast<double>(x[i]) - expected_value) > tolerance * std::max(1.0, std::abs(expected_value)))
      return false;
  }
  return true;
}

template <class T>
void sweep_all_reduce() {
  for (auto [kind, world_size] : groups())
    for (auto n : element_counts(world_size))
      for (auto op : all_ops) {
        INFO(to_string(kind), ", ranks ", world_size, ", elements ", n, ", ", to_string(op));
        const auto results = group_of(kind, world_size).run([&](communicator& group) {
          auto data = input<T>(group.rank().value, n);
          const auto done = group.all_reduce(std::span{data}, op);
          return done ? data : std::vector<T>(n + 1);
        });
        REQUIRE(results[0].size() == n);
        CHECK(is_near(results[0], op, world_size));
        for (const auto& x : results)
          CHECK(x == results[0]);
      }
}

} // namespace

TEST_CASE("all-reduce of f32 is near the float64 reference and equal on all ranks") {
  sweep_all_reduce<float>();
}

TEST_CASE("all-reduce of f64 is near the float64 reference and equal on all ranks") {
  sweep_all_reduce<double>();
}

TEST_CASE("all-reduce of integers is exact, also where it wraps, and a mean truncates") {
  for (auto [kind, world_size] : groups()) {
    const auto sums = group_of(kind, world_size).run([](communicator& group) {
      std::vector<std::int32_t> data = {INT32_MAX, static_cast<std::int32_t>(group.rank().value), -7};
      std::vector<std::int64_t> mean = {-static_cast<std::int64_t>(group.rank().value) - 10};
      const auto done = group.all_reduce(std::span{data}) && group.all_reduce(std::span{mean}, reduce_op::mean);
      data.push_back(done ? static_cast<std::int32_t>(mean[0]) : 0);
      return data;
    });
    const auto n = static_cast<std::int64_t>(world_size);
    for (const auto& x : sums) {
      CHECK(x[0] == static_cast<std::int32_t>(n * INT32_MAX));
      CHECK(x[1] == n * (n - 1) / 2);
      CHECK(x[2] == -7 * n);
      CHECK(x[3] == -(n * 10 + n * (n - 1) / 2) / n);
    }
  }
}

TEST_CASE("all-reduce of 16-bit floats adds in f32 and rounds once, over every transport") {
  for (auto type : {dtype::f16, dtype::bf16})
    for (auto world_size : {1u, 2u, 3u, 8u})
      for (std::size_t n : {1, 31, 1000, 700'001})
        for (auto op : all_ops) {
          INFO(to_string(type), ", ranks ", world_size, ", elements ", n, ", ", to_string(op));
          std::vector<std::vector<std::byte>> by_transport;
          for (auto kind : all_transports) {
            const auto results = group_of(kind, world_size).run([&](communicator& group) {
              std::vector<std::byte> data(n * 2);
              narrow(type, data.data(), reinterpret_cast<const std::byte*>(input<float>(group.rank().value, n).data()),
                     n);
              return group.all_reduce(type, op, data) ? data : std::vector<std::byte>{};
            });
            for (const auto& x : results)
              CHECK(x == results[0]);
            by_transport.push_back(results[0]);
          }
          REQUIRE(by_transport[0].size() == n * 2);
          CHECK(by_transport[0] == by_transport[1]);
          std::vector<float> wide(n);
          widen(type, reinterpret_cast<std::byte*>(wide.data()), by_transport[0].data(), n);
          const auto precision = type == dtype::f16 ? 1.0 / 1024 : 1.0 / 128;
          for (std::size_t i = 0; i < n; i += 97)
            CHECK(std::abs(wide[i] - reference(op, world_size, i)) <=
                  4 * precision * world_size * std::max(1.0, std::abs(reference(op, world_size, i))));
        }
}

TEST_CASE("data in the group's memory is reduced in place, also where only some ranks' data is there") {
  for (auto kind : all_transports)
    for (auto world_size : {2u, 3u, 8u})
      for (auto in_memory : {0u, 1u, world_size}) {
        INFO(to_string(kind), ", ranks ", world_size, ", in the group's memory ", in_memory);
        constexpr std::size_t n = 600'011;
        const auto results = group_of(kind, world_size).run([&](communicator& group) {
          const auto mine = input<float>(group.rank().value, n);
          aligned_buffer shared{n * sizeof(float), group.memory()};
          aligned_buffer alone{n * sizeof(float)};
          auto* data = reinterpret_cast<float*>((group.rank().value < in_memory ? shared : alone).data());
          std::ranges::copy(mine, data);
          return group.all_reduce(std::span{data, n}) ? std::vector<float>(data, data + n) : std::vector<float>{};
        });
        REQUIRE(results[0].size() == n);
        CHECK(is_near(results[0], reduce_op::sum, world_size));
        for (const auto& x : results)
          CHECK(x == results[0]);
      }
}

TEST_CASE("all transports give the same bits") {
  for (auto world_size : {2u, 3u, 7u})
    for (std::size_t n : {5, 1000, 300'001}) {
      std::vector<std::vector<double>> by_transport;
      for (auto kind : all_transports)
        by_transport.push_back(group_of(kind, world_size).run([&](communicator& group) {
          auto data = input<double>(group.rank().value, n);
          return group.all_reduce(std::span{data}) ? data : std::vector<double>{};
        })[0]);
      REQUIRE(by_transport[0].size() == n);
      for (const auto& x : by_transport)
        CHECK(x == by_transport[0]);
    }
}

TEST_CASE("started calls end in order, several at a time, and a direct call waits for them") {
  for (auto [kind, world_size] : groups()) {
    INFO(to_string(kind), ", ranks ", world_size);
    const auto results = group_of(kind, world_size).run([](communicator& group) -> char {
      const auto n = group.world_size();
      std::vector<std::vector<std::int64_t>> data;
      for (std::int64_t i = 0; i < 6; ++i)
        data.emplace_back(1000, i + group.rank().value);
      std::vector<pending_call> calls;
      std::vector<std::size_t> order;
      for (std::size_t i = 0; i < data.size(); ++i)
        calls.push_back(group.start([&, i] {
          order.push_back(i);
          return group.all_reduce(std::span{data[i]});
        }));
      if (!group.barrier())
        return 0;
      auto is_right = order == std::vector<std::size_t>{0, 1, 2, 3, 4, 5};
      for (std::size_t i = 0; i < data.size(); ++i)
        is_right = is_right && calls[i].is_done() && calls[i].wait() &&
                   data[i].back() == static_cast<std::int64_t>(i * n + n * (n - 1) / 2);
      return is_right;
    });
    CHECK(std::ranges::count(results, 1) == world_size);
  }
}

TEST_CASE("repeated all-reduces give the same bits") {
  for (auto kind : all_transports)
    for (auto n : {std::size_t{1000}, std::size_t{65537}}) {
      const auto once = [&] {
        return group_of(kind, 7).run([&](communicator& group) {
          auto data = input<float>(group.rank().value, n);
          return group.all_reduce(std::span{data}) ? data : std::vector<float>{};
        })[0];
      };
      CHECK(once() == once());
    }
}

TEST_CASE("NaN on any one rank wins min and max everywhere") {
  for (auto kind : all_transports)
    for (std::uint32_t culprit = 0; culprit < 4; ++culprit)
      for (auto op : {reduce_op::min, reduce_op::max}) {
        const auto results = group_of(kind, 4).run([&](communicator& group) -> char {
          auto x = group.rank().value == culprit ? std::nanf("") : 1.0f;
          return group.all_reduce(std::span{&x, 1}, op) && std::isnan(x);
        });
        CHECK(std::ranges::count(results, 1) == 4);
      }
}

TEST_CASE("reduce-scatter gives rank r the combination of blocks r") {
  for (auto [kind, world_size] : groups())
    for (auto block : element_counts(world_size))
      for (auto op : all_ops) {
        INFO(to_string(kind), ", ranks ", world_size, ", elements ", block, ", ", to_string(op));
        const auto results = group_of(kind, world_size).run([&](communicator& group) -> char {
          const auto all = input<float>(group.rank().value, block * world_size);
          std::vector<float> mine(block);
          return group.reduce_scatter<float>(all, mine, op) &&
                 is_near(mine, op, world_size, block * group.rank().value);
        });
        CHECK(std::ranges::count(results, 1) == world_size);
      }
}

TEST_CASE("all-gather and all-to-all put every block in its place") {
  for (auto [kind, world_size] : groups())
    for (auto block : element_counts(world_size)) {
      INFO(to_string(kind), ", ranks ", world_size, ", elements ", block);
      const auto results = group_of(kind, world_size).run([&](communicator& group) -> char {
        const auto me = group.rank().value;
        std::vector<float> gathered(block * world_size), exchanged(block * world_size);
        if (!group.all_gather<float>(input<float>(me, block), gathered) ||
            !group.all_to_all<float>(input<float>(me, block * world_size), exchanged))
          return 0;
        for (std::uint32_t r = 0; r < world_size; ++r)
          for (std::size_t i = 0; i < block; ++i)
            if (gathered[r * block + i] != static_cast<float>(value(r, i)) ||
                exchanged[r * block + i] != static_cast<float>(value(r, me * block + i)))
              return 0;
        return 1;
      });
      CHECK(std::ranges::count(results, 1) == world_size);
    }
}

TEST_CASE("all-gather in place finds its own block where it belongs") {
  for (auto kind : all_transports) {
    const auto results = group_of(kind, 4).run([](communicator& group) {
      std::vector<std::int32_t> all(4, -1);
      all[group.rank().value] = static_cast<std::int32_t>(group.rank().value) * 10;
      return group.all_gather<std::int32_t>(std::span{all}.subspan(group.rank().value, 1), all) ? all
                                                                                                : std::vector<int>{};
    });
    for (const auto& x : results)
      CHECK(x == std::vector<std::int32_t>{0, 10, 20, 30});
  }
}

TEST_CASE("all-gather of blobs keeps sizes, including 0") {
  for (auto [kind, world_size] : groups())
    for (std::size_t unit : {0, 1, 5000}) {
      const auto results = group_of(kind, world_size).run([&](communicator& group) {
        const auto me = group.rank().value;
        const auto all = group.all_gather_bytes(std::vector<std::byte>(me * unit, std::byte(me)));
        return all ? *all : std::vector<std::vector<std::byte>>{};
      });
      for (const auto& all : results) {
        REQUIRE(all.size() == world_size);
        for (std::uint32_t r = 0; r < world_size; ++r)
          CHECK(all[r] == std::vector<std::byte>(r * unit, std::byte(r)));
      }
    }
}

TEST_CASE("broadcast reaches every rank from every root") {
  for (auto [kind, world_size] : groups())
    for (auto n : element_counts(world_size))
      for (std::uint32_t root = 0; root < world_size; ++root) {
        INFO(to_string(kind), ", ranks ", world_size, ", elements ", n, ", root ", root);
        const auto results = group_of(kind, world_size).run([&](communicator& group) -> char {
          auto data = input<double>(group.rank().value, n);
          return group.broadcast(std::span{data}, rank_id{root}) && data == input<double>(root, n);
        });
        CHECK(std::ranges::count(results, 1) == world_size);
      }
}

TEST_CASE("a barrier carries the maximum of each word") {
  for (auto [kind, world_size] : groups())
    for (int again = 0; again < 20; ++again) {
      const auto results = group_of(kind, world_size).run([&](communicator& group) {
        const std::uint64_t me = group.rank().value;
        std::vector<std::uint64_t> words = {me, 100 - me, UINT64_MAX * (me == 1 ? 1 : 0)};
        return group.barrier(words) && group.barrier() ? words : std::vector<std::uint64_t>{};
      });
      for (const auto& words : results)
        CHECK(words == std::vector<std::uint64_t>{world_size - 1, 100, world_size > 1 ? UINT64_MAX : 0});
    }
}

TEST_CASE("no rank leaves a barrier before every rank has entered it") {
  for (auto [kind, world_size] : groups()) {
    std::atomic<std::uint32_t> entered = 0;
    const auto seen = group_of(kind, world_size).run([&](communicator& group) {
      ++entered;
      return group.barrier() ? entered.load() : 0;
    });
    CHECK(seen == std::vector<std::uint32_t>(world_size, world_size));
  }
}

TEST_CASE("messages between two ranks keep their order, beside collective calls") {
  for (auto kind : all_transports) {
    const auto results = group_of(kind, 3).run([](communicator& group) {
      std::vector<std::int32_t> seen;
      for (std::int32_t i = 0; i < 10; ++i) {
        if (group.rank().value == 0) {
          if (!group.send(rank_id{2}, std::as_bytes(std::span{&i, 1})))
            return seen;
        } else if (group.rank().value == 2) {
          std::int32_t x = -1;
          if (!group.receive(rank_id{0}, std::as_writable_bytes(std::span{&x, 1})))
            return seen;
          seen.push_back(x);
        }
        if (i % 3 == 0 && !group.barrier())
          return seen;
      }
      return seen;
    });
    CHECK(results[2] == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  }
}

TEST_CASE("the fast all-reduce gives equal replicas, for every segment's type") {
  const bucket_layout layout{{{dtype::f32, 5000}, {dtype::i64, 3}, {dtype::f64, 77}}};
  for (auto [kind, world_size] : groups()) {
    const auto results = group_of(kind, world_size).run([&](communicator& group) {
      std::vector<std::byte> bucket(layout.size_bytes());
      auto* f32 = reinterpret_cast<float*>(bucket.data());
      auto* i64 = reinterpret_cast<std::int64_t*>(bucket.data() + layout.offset_bytes(1));
      auto* f64 = reinterpret_cast<double*>(bucket.data() + layout.offset_bytes(2));
      std::ranges::copy(input<float>(group.rank().value, 5000), f32);
      std::fill_n(i64, 3, std::int64_t{1} << 40);
      std::ranges::copy(input<double>(group.rank().value, 77), f64);
      auto result = group.make_bucket(layout);
      if (!result || !group.all_reduce_fast(layout, bucket, **result))
        return std::vector<std::byte>{};
      return std::vector<std::byte>((*result)->bytes().begin(), (*result)->bytes().end());
    });
    REQUIRE(results[0].size() == layout.size_bytes());
    const auto* f32 = reinterpret_cast<const float*>(results[0].data());
    CHECK(is_near(std::vector<float>(f32, f32 + 5000), reduce_op::sum, world_size));
    const auto* i64 = reinterpret_cast<const std::int64_t*>(results[0].data() + layout.offset_bytes(1));
    CHECK(i64[2] == (std::int64_t{1} << 40) * world_size);
    for (const auto& x : results)
      CHECK(x == results[0]);
  }
}

TEST_CASE("all-reduce sends the bytes of a ring") {
  constexpr std::uint32_t world_size = 8;
  const auto results = group_of(swept_transport::tcp, world_size).run([](communicator& group) -> std::uint64_t {
    std::vector<float> data(std::size_t{world_size} * 16 * 400);
    const auto before = group.sent().sent_bytes;
    return group.all_reduce(std::span{data}) ? group.sent().sent_bytes - before : 0;
  });
  for (auto sent : results)
    CHECK(sent == 2 * (world_size - 1) * 25'600);
}

TEST_CASE("inconsistent arguments are rejected, and the group stays usable") {
  for (auto kind : all_transports) {
    const auto results = group_of(kind, 2).run([](communicator& group) {
      std::vector<errc> codes;
      const auto note = [&](const expected<void>& result) {
        codes.push_back(result ? errc::none : result.error().code);
      };
      std::vector<std::byte> bytes(6), other(7);
      note(group.all_reduce(dtype::f32, reduce_op::sum, bytes));
      note(group.all_reduce(dtype::i8, reduce_op::sum, bytes));
      note(group.reduce_scatter(dtype::u8, reduce_op::sum, bytes, other));
      note(group.all_gather(bytes, other));
      note(group.all_to_all(bytes, other));
      note(group.broadcast(bytes, rank_id{2}));
      note(group.send(rank_id{2}, bytes));
      note(group.send(group.rank(), bytes));
      note(group.receive(group.rank(), bytes));
      const bucket_layout layout{{{dtype::f32, 1}}};
      auto result = group.make_bucket(layout);
      note(group.all_reduce_fast(layout, bytes, **result));
      note(group.all_reduce_fast(layout, std::vector<std::byte>(64), **result, 1, 1));
      note(group.all_reduce_fast(layout, std::vector<std::byte>(64), **result, 0));
      note(group.make_bucket(layout, {{0, 32}}) ? expected<void>{} : fail(errc::invalid_argument, ""));
      note(group.barrier());
      return codes;
    });
    auto wanted = std::vector<errc>(13, errc::invalid_argument);
    wanted.push_back(errc::none);
    for (const auto& codes : results)
      CHECK(codes == wanted);
  }
}

TEST_CASE("the group of one behaves as any other") {
  const auto alone = make_self_communicator(generation_id{7});
  CHECK(alone->rank() == rank_id{0});
  CHECK(alone->world_size() == 1);
  CHECK(alone->generation() == generation_id{7});
  auto data = input<float>(0, 1000);
  CHECK(alone->all_reduce(std::span{data}, reduce_op::mean));
  CHECK(data == input<float>(0, 1000));
  std::vector<float> copy(1000);
  CHECK(alone->all_gather<float>(data, copy));
  CHECK(copy == data);
  CHECK(alone->sent() == traffic{});
}

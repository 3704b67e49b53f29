#include "gloo_group.hpp"

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

/// Groups are made once: all cases of a size run on the same connections, one after the other, as steps do.
gloo_group& group_of(std::uint32_t world_size) {
  static std::vector<std::pair<std::uint32_t, std::unique_ptr<gloo_group>>> groups;
  for (auto& [size, group] : groups)
    if (size == world_size)
      return *group;
  return *groups.emplace_back(world_size, std::make_unique<gloo_group>(world_size)).second;
}

const std::vector<std::uint32_t> world_sizes = {1, 2, 3, 4, 7, 8};

std::vector<std::size_t> element_counts(std::uint32_t world_size) {
  return {0, 1, world_size - 1, world_size, 1000, 65537};
}

/// Distinct per rank and index, and small enough that products stay finite.
double value(std::uint32_t rank, std::size_t i) {
  return 1.0 + static_cast<double>((rank * 31 + i * 7) % 101) / 128.0 * (rank % 2 == 0 ? 1.0 : -1.0);
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
  for (auto world_size : world_sizes)
    for (auto n : element_counts(world_size))
      for (auto op : all_ops) {
        INFO("ranks ", world_size, ", elements ", n, ", ", to_string(op));
        const auto results = group_of(world_size).run([&](communicator& group) {
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
  for (auto world_size : world_sizes) {
    const auto sums = group_of(world_size).run([](communicator& group) {
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

TEST_CASE("all-reduce gives the same bits when it is done again") {
  for (auto n : {std::size_t{1000}, std::size_t{65537}}) {
    const auto once = [&] {
      return group_of(7).run([&](communicator& group) {
        auto data = input<float>(group.rank().value, n);
        return group.all_reduce(std::span{data}) ? data : std::vector<float>{};
      })[0];
    };
    CHECK(once() == once());
  }
}

TEST_CASE("NaN on any one rank wins min and max everywhere") {
  for (std::uint32_t culprit = 0; culprit < 4; ++culprit)
    for (auto op : {reduce_op::min, reduce_op::max}) {
      const auto results = group_of(4).run([&](communicator& group) -> char {
        auto x = group.rank().value == culprit ? std::nanf("") : 1.0f;
        return group.all_reduce(std::span{&x, 1}, op) && std::isnan(x);
      });
      CHECK(std::ranges::count(results, 1) == 4);
    }
}

TEST_CASE("reduce-scatter gives rank r the combination of blocks r") {
  for (auto world_size : world_sizes)
    for (auto block : element_counts(world_size))
      for (auto op : all_ops) {
        INFO("ranks ", world_size, ", elements ", block, ", ", to_string(op));
        const auto results = group_of(world_size).run([&](communicator& group) -> char {
          const auto all = input<float>(group.rank().value, block * world_size);
          std::vector<float> mine(block);
          return group.reduce_scatter<float>(all, mine, op) &&
                 is_near(mine, op, world_size, block * group.rank().value);
        });
        CHECK(std::ranges::count(results, 1) == world_size);
      }
}

TEST_CASE("all-gather and all-to-all put every block in its place") {
  for (auto world_size : world_sizes)
    for (auto block : element_counts(world_size)) {
      INFO("ranks ", world_size, ", elements ", block);
      const auto results = group_of(world_size).run([&](communicator& group) -> char {
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
  const auto results = group_of(4).run([](communicator& group) {
    std::vector<std::int32_t> all(4, -1);
    all[group.rank().value] = static_cast<std::int32_t>(group.rank().value) * 10;
    return group.all_gather<std::int32_t>(std::span{all}.subspan(group.rank().value, 1), all) ? all
                                                                                              : std::vector<int>{};
  });
  for (const auto& x : results)
    CHECK(x == std::vector<std::int32_t>{0, 10, 20, 30});
}

TEST_CASE("all-gather of blobs keeps sizes, also none") {
  for (auto world_size : world_sizes)
    for (std::size_t unit : {0, 1, 5000}) {
      const auto results = group_of(world_size).run([&](communicator& group) {
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

TEST_CASE("broadcast reaches everybody from every root") {
  for (auto world_size : world_sizes)
    for (auto n : element_counts(world_size))
      for (std::uint32_t root = 0; root < world_size; ++root) {
        INFO("ranks ", world_size, ", elements ", n, ", root ", root);
        const auto results = group_of(world_size).run([&](communicator& group) -> char {
          auto data = input<double>(group.rank().value, n);
          return group.broadcast(std::span{data}, rank_id{root}) && data == input<double>(root, n);
        });
        CHECK(std::ranges::count(results, 1) == world_size);
      }
}

TEST_CASE("a barrier carries the maximum of each word") {
  for (auto world_size : world_sizes)
    for (int again = 0; again < 20; ++again) {
      const auto results = group_of(world_size).run([&](communicator& group) {
        const std::uint64_t me = group.rank().value;
        std::vector<std::uint64_t> words = {me, 100 - me, UINT64_MAX * (me == 1 ? 1 : 0)};
        return group.barrier(words) && group.barrier() ? words : std::vector<std::uint64_t>{};
      });
      for (const auto& words : results)
        CHECK(words == std::vector<std::uint64_t>{world_size - 1, 100, world_size > 1 ? UINT64_MAX : 0});
    }
}

TEST_CASE("nobody leaves a barrier before everybody has entered it") {
  for (auto world_size : world_sizes) {
    std::atomic<std::uint32_t> entered = 0;
    const auto seen = group_of(world_size).run([&](communicator& group) {
      ++entered;
      return group.barrier() ? entered.load() : 0;
    });
    CHECK(seen == std::vector<std::uint32_t>(world_size, world_size));
  }
}

TEST_CASE("messages between two ranks keep their order, beside collectives of all") {
  const auto results = group_of(3).run([](communicator& group) {
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

TEST_CASE("the fast all-reduce gives replicas that agree, of every segment's type") {
  const bucket_layout layout{{{dtype::f32, 5000}, {dtype::i64, 3}, {dtype::f64, 77}}};
  for (auto world_size : world_sizes) {
    const auto results = group_of(world_size).run([&](communicator& group) {
      std::vector<std::byte> bucket(layout.size_bytes());
      auto* f32 = reinterpret_cast<float*>(bucket.data());
      auto* i64 = reinterpret_cast<std::int64_t*>(bucket.data() + layout.offset_bytes(1));
      auto* f64 = reinterpret_cast<double*>(bucket.data() + layout.offset_bytes(2));
      std::ranges::copy(input<float>(group.rank().value, 5000), f32);
      std::fill_n(i64, 3, std::int64_t{1} << 40);
      std::ranges::copy(input<double>(group.rank().value, 77), f64);
      return group.all_reduce_fast(layout, bucket) ? bucket : std::vector<std::byte>{};
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
  const auto results = group_of(world_size).run([](communicator& group) -> std::uint64_t {
    std::vector<float> data(world_size * 16 * 100);
    const auto before = group.sent().sent_bytes;
    return group.all_reduce(std::span{data}) ? group.sent().sent_bytes - before : 0;
  });
  for (auto sent : results)
    CHECK(sent == 2 * (world_size - 1) * 6400);
}

TEST_CASE("arguments that do not fit are refused, and the group goes on") {
  const auto results = group_of(2).run([](communicator& group) {
    std::vector<errc> codes;
    const auto note = [&](const expected<void>& result) { codes.push_back(result ? errc::none : result.error().code); };
    std::vector<std::byte> bytes(6), other(7);
    note(group.all_reduce(dtype::f32, reduce_op::sum, bytes));
    note(group.all_reduce(dtype::bf16, reduce_op::sum, bytes));
    note(group.reduce_scatter(dtype::u8, reduce_op::sum, bytes, other));
    note(group.all_gather(bytes, other));
    note(group.all_to_all(bytes, other));
    note(group.broadcast(bytes, rank_id{2}));
    note(group.send(rank_id{2}, bytes));
    note(group.send(group.rank(), bytes));
    note(group.receive(group.rank(), bytes));
    note(group.all_reduce_fast(bucket_layout{{{dtype::f32, 1}}}, bytes));
    note(group.barrier());
    return codes;
  });
  auto wanted = std::vector<errc>(10, errc::invalid_argument);
  wanted.push_back(errc::none);
  for (const auto& codes : results)
    CHECK(codes == wanted);
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

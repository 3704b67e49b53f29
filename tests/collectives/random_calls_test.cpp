#include "leaf_values.hpp"
#include "rank_group.hpp"

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/collectives/leaf_accumulator.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>
#include <iostream>
#include <optional>
#include <random>

// TROUPE_LONG_TESTS=<seconds> extends the run to that time; TROUPE_SEED=<number> repeats one seed.

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

constexpr dtype all_types[] = {dtype::f32, dtype::f64, dtype::f16, dtype::bf16, dtype::i32, dtype::i64, dtype::u8};
constexpr reduce_op all_ops[] = {reduce_op::sum, reduce_op::mean, reduce_op::min, reduce_op::max, reduce_op::product};

std::uint32_t below(std::mt19937& random, std::uint32_t limit) {
  return std::uniform_int_distribution<std::uint32_t>{0, limit - 1}(random);
}

/// Small sizes are as likely as large ones; 0 is possible.
std::uint32_t random_size(std::mt19937& random, std::uint32_t limit) {
  return below(random, 1 + (limit >> below(random, 12)));
}

/// What a rank gives to a call: distinct for each seed, rank and byte.
void fill_bytes(std::span<std::byte> out, std::uint64_t salt) {
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<std::byte>(mix(salt, i));
}

/// An element that a rank contributes. Sums and products of eight of them stay finite.
template <class T>
T element(std::uint64_t salt, std::size_t i) {
  const auto bits = mix(salt, i);
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(bits);
  else if constexpr (is_half<T>)
    return T::nearest(0.5 + static_cast<double>(bits % 1024) / 512 * (bits % 3 == 0 ? -1 : 1));
  else
    return static_cast<T>(static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-63);
}

/// `f` gets a value of the type.
template <class F>
void with_any_value(dtype type, F f) {
  if (type == dtype::i32)
    f(std::int32_t{});
  else if (type == dtype::u8)
    f(std::uint8_t{});
  else
    with_value(type, f);
}

template <class T>
sum_of<T> wide(T x) {
  if constexpr (is_half<T>)
    return static_cast<float>(x.value());
  else
    return x;
}

template <class S>
S combined(reduce_op op, S left, S right) {
  switch (op) {
  case reduce_op::min:
    return std::min(left, right);
  case reduce_op::max:
    return std::max(left, right);
  case reduce_op::product:
    if constexpr (std::is_integral_v<S>)
      return static_cast<S>(static_cast<std::uint64_t>(left) * static_cast<std::uint64_t>(right));
    else
      return left * right;
  case reduce_op::sum:
  case reduce_op::mean:
    break;
  }
  if constexpr (std::is_integral_v<S>)
    return static_cast<S>(static_cast<std::uint64_t>(left) + static_cast<std::uint64_t>(right));
  else
    return left + right;
}

/// The canonical tree over ranks, by plain recursion.
template <class T>
sum_of<T> tree_over_ranks(reduce_op op, std::uint32_t ranks, tree_node node, const auto& of_rank) {
  if (node.level == 0)
    return wide<T>(of_rank(node.index));
  const auto left = tree_over_ranks<T>(op, ranks, {node.level - 1, 2 * node.index}, of_rank);
  const tree_node right{node.level - 1, 2 * node.index + 1};
  if (covered_shards(ranks, right).size() == 0)
    return left;
  return combined(op, left, tree_over_ranks<T>(op, ranks, right, of_rank));
}

template <class T>
T reduced(reduce_op op, std::uint32_t ranks, const auto& of_rank) {
  auto sum = tree_over_ranks<T>(op, ranks, {root_level(ranks), 0}, of_rank);
  if (op == reduce_op::mean)
    sum = static_cast<sum_of<T>>(sum / static_cast<sum_of<T>>(ranks));
  if constexpr (is_half<T>)
    return T::nearest(sum);
  else
    return sum;
}

/// Memory of one call: the group's, or any other.
class operand {
 public:
  operand(communicator& group, bool is_registered, std::size_t offset, std::size_t size_bytes)
      : memory_(offset + size_bytes, is_registered ? group.memory() : *std::pmr::new_delete_resource()),
        offset_(offset),
        size_bytes_(size_bytes) {}
  std::span<std::byte> bytes() const { return memory_.bytes().subspan(offset_, size_bytes_); }

 private:
  aligned_buffer memory_;
  std::size_t offset_;
  std::size_t size_bytes_;
};

/// A call of one rank, and its check afterwards. All ranks draw the same random numbers for it.
struct planned_call {
  std::string name;
  std::function<expected<void>()> make;
  std::function<bool()> is_right;
  /// The data that all ranks must have in common; empty if there is none.
  std::function<std::span<const std::byte>()> common = [] { return std::span<const std::byte>{}; };
};

constexpr std::uint32_t max_bytes = 300'000;

class planner {
 public:
  planner(communicator& group, std::uint32_t seed)
      : group_(group), n_(group.world_size()), me_(group.rank().value), random_(seed) {}

  std::uint32_t draw(std::uint32_t limit) { return below(random_, limit); }

  planned_call next() {
    salt_ = std::uint64_t{random_()} << 32 | random_();
    switch (draw(12)) {
    case 0:
    case 1:
      return all_reduce();
    case 2:
      return reduce_scatter();
    case 3:
      return all_gather();
    case 4:
      return all_gather_bytes();
    case 5:
      return broadcast();
    case 6:
      return all_to_all();
    case 7:
      return barrier();
    case 8:
      return messages();
    default:
      return draw(4) == 0 ? all_reduce_fast() : reduce_leaves();
    }
  }

 private:
  std::uint64_t salt_of(std::uint64_t rank) const { return salt_ + rank * 1'000'003; }

  std::shared_ptr<operand> make_operand(std::size_t size_bytes, std::size_t unit = 1) {
    const auto offset = draw(2) == 0 ? 0 : unit * draw(40);
    // Each rank also draws for itself, so that only some may have registered memory.
    const auto whose = draw(3);
    const auto is_registered = whose == 0 || (whose == 1 && mix(salt_, me_) % 2 == 0);
    return std::make_shared<operand>(group_, is_registered, offset, size_bytes);
  }

  planned_call all_reduce() {
    const auto type = all_types[draw(std::size(all_types))];
    const auto op = all_ops[draw(std::size(all_ops))];
    const auto count = random_size(random_, max_bytes) / size_of(type);
    auto data = make_operand(count * size_of(type), size_of(type));
    planned_call result;
    result.name = "all_reduce of " + std::to_string(count) + " " + std::string{to_string(type)} + ", " +
                  std::string{to_string(op)};
    with_any_value(type, [&]<class T>(T) {
      auto* x = reinterpret_cast<T*>(data->bytes().data());
      for (std::size_t i = 0; i < count; ++i)
        x[i] = element<T>(salt_of(me_), i);
      result.is_right = [=, this, salt = salt_] { return is_reduced<T>({x, count}, op, salt, 0); };
    });
    result.make = [=, this] { return group_.all_reduce(type, op, data->bytes()); };
    result.common = [data] { return data->bytes(); };
    return result;
  }

  planned_call reduce_scatter() {
    const auto type = all_types[draw(std::size(all_types))];
    const auto op = all_ops[draw(std::size(all_ops))];
    const auto count = random_size(random_, max_bytes / n_) / size_of(type);
    auto in = make_operand(n_ * count * size_of(type), size_of(type));
    auto out = make_operand(count * size_of(type), size_of(type));
    planned_call result;
    result.name = "reduce_scatter of blocks of " + std::to_string(count) + " " + std::string{to_string(type)} + ", " +
                  std::string{to_string(op)};
    with_any_value(type, [&]<class T>(T) {
      auto* x = reinterpret_cast<T*>(in->bytes().data());
      for (std::size_t i = 0; i < n_ * count; ++i)
        x[i] = element<T>(salt_of(me_), i);
      const auto* y = reinterpret_cast<const T*>(out->bytes().data());
      result.is_right = [=, this, salt = salt_] { return is_reduced<T>({y, count}, op, salt, me_ * count); };
    });
    result.make = [=, this] { return group_.reduce_scatter(type, op, in->bytes(), out->bytes()); };
    return result;
  }

  /// Each rank checks its share of the common data, and the ends. Checking 16-bit floats is slow, so only some
  /// elements.
  template <class T>
  bool is_reduced(std::span<const T> x, reduce_op op, std::uint64_t salt, std::size_t first) const {
    const auto is_right = [&](std::size_t i) {
      const auto wanted =
          reduced<T>(op, n_, [&](std::uint32_t rank) { return element<T>(salt + rank * 1'000'003u, first + i); });
      return std::memcmp(&x[i], &wanted, sizeof(T)) == 0;
    };
    for (std::size_t i = me_; i < x.size(); i += is_half<T> ? 5 * n_ : n_)
      if (!is_right(i))
        return false;
    return x.empty() || (is_right(0) && is_right(x.size() - 1));
  }

  planned_call all_gather() {
    const auto size = random_size(random_, max_bytes / n_);
    auto in = make_operand(size);
    auto out = make_operand(size * n_);
    fill_bytes(in->bytes(), salt_of(me_));
    planned_call result;
    result.name = "all_gather of " + std::to_string(size) + " bytes";
    result.make = [=, this] { return group_.all_gather(in->bytes(), out->bytes()); };
    result.common = [out] { return out->bytes(); };
    result.is_right = [=, this, salt = salt_] {
      std::vector<std::byte> wanted(size);
      const auto r = (me_ + 1) % n_;
      fill_bytes(wanted, salt + r * 1'000'003u);
      return std::ranges::equal(wanted, out->bytes().subspan(r * size, size));
    };
    return result;
  }

  planned_call all_gather_bytes() {
    const auto most = random_size(random_, max_bytes / n_);
    const auto size = [=, salt = salt_](std::uint64_t rank) { return mix(salt, rank) % (most + 1); };
    auto mine = make_operand(size(me_));
    fill_bytes(mine->bytes(), salt_of(me_));
    auto out = std::make_shared<std::vector<std::vector<std::byte>>>();
    planned_call result;
    result.name = "all_gather_bytes of up to " + std::to_string(most) + " bytes";
    result.make = [=, this]() -> expected<void> {
      auto all = group_.all_gather_bytes(mine->bytes());
      if (!all)
        return fail(all.error());
      *out = std::move(*all);
      return {};
    };
    result.is_right = [=, this, salt = salt_] {
      for (std::uint32_t r = 0; r < n_; ++r) {
        std::vector<std::byte> wanted(size(r));
        fill_bytes(wanted, salt + r * 1'000'003u);
        if (out->size() != n_ || (*out)[r] != wanted)
          return false;
      }
      return true;
    };
    return result;
  }

  planned_call broadcast() {
    const auto size = random_size(random_, max_bytes);
    const auto root = draw(n_);
    auto data = make_operand(size);
    fill_bytes(data->bytes(), salt_of(me_));
    planned_call result;
    result.name = "broadcast of " + std::to_string(size) + " bytes";
    result.make = [=, this] { return group_.broadcast(data->bytes(), rank_id{root}); };
    result.common = [data] { return data->bytes(); };
    result.is_right = [=, salt = salt_] {
      std::vector<std::byte> wanted(size);
      fill_bytes(wanted, salt + root * 1'000'003u);
      return std::ranges::equal(wanted, data->bytes());
    };
    return result;
  }

  planned_call all_to_all() {
    const auto size = random_size(random_, max_bytes / n_);
    auto in = make_operand(size * n_);
    auto out = make_operand(size * n_);
    for (std::uint32_t r = 0; r < n_; ++r)
      fill_bytes(in->bytes().subspan(r * size, size), salt_of(me_ * 64 + r));
    planned_call result;
    result.name = "all_to_all of blocks of " + std::to_string(size) + " bytes";
    result.make = [=, this] { return group_.all_to_all(in->bytes(), out->bytes()); };
    result.is_right = [=, this, salt = salt_] {
      for (std::uint32_t r = 0; r < n_; ++r) {
        std::vector<std::byte> wanted(size);
        fill_bytes(wanted, salt + (r * 64 + me_) * 1'000'003ull);
        if (!std::ranges::equal(wanted, out->bytes().subspan(r * size, size)))
          return false;
      }
      return true;
    };
    return result;
  }

  planned_call barrier() {
    auto words = std::make_shared<std::vector<std::uint64_t>>(draw(12));
    for (std::size_t i = 0; i < words->size(); ++i)
      (*words)[i] = mix(salt_of(me_), i);
    planned_call result;
    result.name = "barrier with " + std::to_string(words->size()) + " words";
    result.make = [=, this] { return group_.barrier(*words); };
    result.is_right = [=, this, salt = salt_] {
      for (std::size_t i = 0; i < words->size(); ++i) {
        std::uint64_t wanted = 0;
        for (std::uint32_t r = 0; r < n_; ++r)
          wanted = std::max(wanted, mix(salt + r * 1'000'003u, i));
        if ((*words)[i] != wanted)
          return false;
      }
      return true;
    };
    return result;
  }

  /// Neighbours in a random order form pairs and exchange some messages in each direction; an odd rank has no partner.
  planned_call messages() {
    std::vector<std::uint32_t> order(n_);
    for (std::uint32_t r = 0; r < n_; ++r)
      order[r] = r;
    std::ranges::shuffle(order, random_);
    const auto place = static_cast<std::uint32_t>(std::ranges::find(order, me_) - order.begin());
    const auto count = 1 + draw(4);
    std::vector<std::uint32_t> sizes(2 * count);
    for (auto& x : sizes)
      x = random_size(random_, max_bytes / 4);
    planned_call result;
    result.name = "messages in pairs";
    if ((place ^ 1) >= n_) {
      result.make = [] { return expected<void>{}; };
      result.is_right = [] { return true; };
      return result;
    }
    const auto peer = order[place ^ 1];
    auto is_right = std::make_shared<bool>(true);
    result.make = [=, this, salt = salt_]() -> expected<void> {
      for (std::uint32_t i = 0; i < 2 * count; ++i) {
        // The first half goes one way, the second the other.
        const auto is_sender = (i < count) == (place % 2 == 0);
        std::vector<std::byte> bytes(sizes[i]), wanted(sizes[i]);
        fill_bytes(wanted, salt + i + (is_sender ? me_ : peer) * 1'000'003u);
        if (auto done = is_sender ? group_.send(rank_id{peer}, wanted) : group_.receive(rank_id{peer}, bytes); !done)
          return done;
        *is_right = *is_right && (is_sender || bytes == wanted);
      }
      return {};
    };
    result.is_right = [is_right] { return *is_right; };
    return result;
  }

  bucket_layout random_layout(std::uint32_t limit_bytes, std::span<const dtype> types) {
    std::vector<bucket_segment> segments;
    const auto count = 1 + draw(3);
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto type = types[draw(static_cast<std::uint32_t>(types.size()))];
      segments.push_back({type, random_size(random_, limit_bytes / count) / size_of(type)});
    }
    return bucket_layout{segments};
  }

  std::uint64_t random_part() { return draw(2) == 0 ? UINT64_MAX : 4096 * (1 + draw(10)); }

  struct reduced_layout {
    bucket_layout layout;
    std::unique_ptr<reduced_bucket> result;
    std::optional<leaf_accumulator> sums;
    std::vector<shard_range> ownership;
    std::vector<std::byte> contribution;
  };

  planned_call reduce_leaves() {
    constexpr dtype types[] = {dtype::f32, dtype::f64, dtype::f16, dtype::bf16, dtype::i64};
    // The reference is slow: large buckets have few shards.
    const auto is_large = draw(3) == 0;
    const auto shards = 1 + draw(is_large ? 5 : 20);
    auto x = std::make_shared<reduced_layout>();
    x->layout = random_layout(is_large ? max_bytes : 20'000, types);
    x->result = value_or_throw(group_.make_bucket(x->layout, cut_bucket(x->layout, random_part())));
    const auto is_registered = draw(2) == 0;
    x->sums.emplace(value_or_throw(
        leaf_accumulator::make(x->layout, shards, is_registered ? group_.memory() : *std::pmr::new_delete_resource())));
    std::vector<std::uint32_t> cuts = {0, shards};
    for (std::uint32_t i = 1; i < n_; ++i)
      cuts.push_back(draw(shards + 1));
    std::ranges::sort(cuts);
    for (std::uint32_t i = 0; i < n_; ++i)
      x->ownership.push_back({cuts[i], cuts[i + 1]});
    std::ranges::shuffle(x->ownership, random_);
    const auto divisor = draw(2) == 0 ? 1 : 1 + draw(1000);
    const auto range = x->ownership[me_];
    x->sums->begin(range);
    for (auto shard = range.first; shard < range.last; ++shard)
      add_shard(x->layout, shard, x->sums->next(shard_id{shard}));
    x->sums->end();
    planned_call result;
    result.name = "reduce_leaves of " + std::to_string(x->layout.size_bytes()) + " bytes, " + std::to_string(shards) +
                  " shards, divided by " + std::to_string(divisor);
    result.make = [=, this]() -> expected<void> {
      for (std::size_t part = 0; part < x->result->parts().size(); ++part)
        if (auto done =
                group_.reduce_leaves(x->layout, shards, x->ownership, x->sums->partials(), *x->result, divisor, part);
            !done)
          return done;
      return {};
    };
    result.common = [x] { return x->result->bytes(); };
    // One rank computes it; that the others have the same data is checked anyway.
    result.is_right = [=, this] {
      return me_ != shards % n_ || std::ranges::equal(x->result->bytes(), reference_root(x->layout, shards, divisor));
    };
    return result;
  }

  planned_call all_reduce_fast() {
    constexpr dtype types[] = {dtype::f32, dtype::f64, dtype::i64};
    auto x = std::make_shared<reduced_layout>();
    x->layout = random_layout(max_bytes, types);
    x->result = value_or_throw(group_.make_bucket(x->layout, cut_bucket(x->layout, random_part())));
    auto mine = make_operand(x->layout.size_bytes(), alignment_bytes);
    const auto for_each_segment = [x](const auto& f) {
      for (std::size_t i = 0; i < x->layout.segments().size(); ++i)
        with_value(x->layout.segments()[i].type,
                   [&]<class T>(T value) { f(value, i, x->layout.offset_bytes(i), x->layout.segments()[i].elements); });
    };
    for_each_segment([&]<class T>(T, std::size_t salt, std::uint64_t offset, std::uint64_t count) {
      auto* at = reinterpret_cast<T*>(mine->bytes().data() + offset);
      for (std::uint64_t i = 0; i < count; ++i)
        at[i] = element<T>(salt_of(me_) + salt, i);
    });
    planned_call result;
    result.name = "all_reduce_fast of " + std::to_string(x->layout.size_bytes()) + " bytes";
    result.make = [=, this]() -> expected<void> {
      for (std::size_t part = 0; part < x->result->parts().size(); ++part)
        if (auto done = group_.all_reduce_fast(x->layout, mine->bytes(), *x->result, 1, part); !done)
          return done;
      return {};
    };
    result.common = [x] { return x->result->bytes(); };
    result.is_right = [=, this, salt = salt_] {
      auto is_right = true;
      for_each_segment([&]<class T>(T, std::size_t segment, std::uint64_t offset, std::uint64_t count) {
        const auto* at = reinterpret_cast<const T*>(x->result->bytes().data() + offset);
        for (std::uint64_t i = me_; i < count; i += n_) {
          if constexpr (is_half<T>) {
            is_right = false;
          } else {
            const auto wanted = reduced<T>(reduce_op::sum, n_, [&](std::uint32_t rank) {
              return element<T>(salt + rank * 1'000'003u + segment, i);
            });
            if constexpr (std::is_integral_v<T>)
              is_right = is_right && at[i] == wanted;
            else
              is_right = is_right && std::abs(at[i] - wanted) <= n_ * std::numeric_limits<T>::epsilon() * n_;
          }
        }
      });
      return is_right;
    };
    return result;
  }

  communicator& group_;
  std::uint32_t n_;
  std::uint32_t me_;
  std::mt19937 random_;
  std::uint64_t salt_ = 0;
};

struct outcome {
  /// The first error.
  std::string trouble;
  /// A digest of what all ranks have in common after each call.
  std::vector<std::uint64_t> digests;
  std::vector<std::string> names;
};

std::uint64_t digest_of(std::span<const std::byte> bytes) {
  auto digest = std::uint64_t{0xcbf29ce484222325} + bytes.size();
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    std::uint64_t x = 0;
    std::memcpy(&x, bytes.data(), 8);
    digest = (std::rotl(digest, 5) ^ x) * 0x9e3779b97f4a7c15u;
  }
  for (auto x : bytes)
    digest = (std::rotl(digest, 5) ^ static_cast<std::uint8_t>(x)) * 0x9e3779b97f4a7c15u;
  return digest;
}

/// Makes random calls. Started calls are waited for in turn, or by the next direct call.
outcome make_calls(communicator& group, std::uint32_t seed, int rounds) {
  planner plan{group, seed};
  outcome result;
  for (int round = 0; round < rounds; ++round) {
    std::vector<planned_call> calls;
    const auto is_started = plan.draw(3) == 0;
    const auto waits_in_turn = plan.draw(2) == 0;
    const auto count = is_started ? 1 + plan.draw(4) : 1;
    for (std::uint32_t i = 0; i < count; ++i)
      calls.push_back(plan.next());
    std::vector<pending_call> pending;
    for (auto& x : calls)
      if (is_started)
        pending.push_back(group.start(x.make));
    expected<void> done;
    if (!is_started)
      done = calls[0].make();
    else if (!waits_in_turn)
      done = group.barrier();
    for (auto& x : pending)
      if (auto waited = x.wait(); !waited)
        done = waited;
    for (auto& x : calls) {
      result.names.push_back((is_started ? "started " : "") + x.name);
      if (!done || !x.is_right()) {
        result.trouble = result.names.back() + ": " + (done ? "a wrong result" : done.error().message);
        // Otherwise the other ranks would wait for this one.
        group.abort({errc::internal, result.trouble});
        return result;
      }
      result.digests.push_back(digest_of(x.common()));
    }
  }
  return result;
}

/// One world of random size on each transport.
void run_world(std::uint32_t seed, int rounds) {
  std::mt19937 random{seed};
  const auto world_size = 1 + below(random, 8);
  for (auto kind : all_transports) {
    const auto of_transport = to_string(kind);
    INFO("seed ", seed, ", ", of_transport, ", ranks ", world_size);
    rank_group group{kind, world_size};
    const auto outcomes = group.run([&](communicator& x) { return make_calls(x, seed, rounds); });
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      INFO("rank ", rank, ": ", outcomes[rank].trouble);
      REQUIRE(outcomes[rank].trouble.empty());
      for (std::size_t i = 0; i < outcomes[0].digests.size(); ++i) {
        INFO("call ", i, ": ", outcomes[0].names[i]);
        REQUIRE(outcomes[rank].digests[i] == outcomes[0].digests[i]);
      }
    }
  }
}

} // namespace

TEST_CASE("random calls of random sizes in random worlds give the results of plain recursion on all ranks") {
  const auto* given = std::getenv("TROUPE_SEED");
  const auto first =
      given != nullptr ? static_cast<std::uint32_t>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
  std::cout << "seed of the random calls: " << first << std::endl;
  const auto* seconds = std::getenv("TROUPE_LONG_TESTS");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{seconds != nullptr ? std::atoi(seconds) : 0};
  auto worlds = 0u;
  do
    run_world(first + worlds, 40);
  while (++worlds < 8 || std::chrono::steady_clock::now() < end);
  std::cout << worlds << " worlds on each transport\n";
}

#pragma once

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/collectives/communicator.hpp>
#include <troupe/collectives/leaf_accumulator.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

namespace troupe::collectives::testing {

/// One kind of call, repeated with its own memory.
struct kind_of_call {
  std::string name;
  /// The name in errors.
  std::string text;
  std::function<std::function<expected<void>()>(communicator&)> make;
};

inline std::function<expected<void>()> large_all_reduce(communicator& group, std::pmr::memory_resource& memory) {
  constexpr std::size_t n = 300'000;
  auto data = std::make_shared<aligned_buffer>(n * sizeof(float), memory);
  std::fill_n(reinterpret_cast<float*>(data->data()), n, 1.0f);
  return [&group, data] { return group.all_reduce(std::span{reinterpret_cast<float*>(data->data()), n}); };
}

inline std::function<expected<void>()> leaves(communicator& group, std::pmr::memory_resource& memory) {
  struct state {
    bucket_layout layout{{{dtype::f32, 200'000}, {dtype::bf16, 3000}}};
    std::vector<shard_range> ownership;
    std::optional<leaf_accumulator> sums;
    std::unique_ptr<reduced_bucket> result;
  };
  auto x = std::make_shared<state>();
  x->ownership = even_ownership(13, group.world_size());
  x->sums.emplace(value_or_throw(leaf_accumulator::make(x->layout, 13, memory)));
  x->sums->begin(x->ownership[group.rank().value]);
  x->sums->end();
  x->result = value_or_throw(group.make_bucket(x->layout));
  return [&group, x] { return group.reduce_leaves(x->layout, 13, x->ownership, x->sums->partials(), *x->result); };
}

inline const std::vector<kind_of_call>& all_kinds() {
  static const std::vector<kind_of_call> kinds{
      {"small all_reduce", "all_reduce",
       [](communicator& group) {
         return [&group, data = std::vector<float>(10)]() mutable { return group.all_reduce(std::span{data}); };
       }},
      {"large all_reduce in the pool", "all_reduce",
       [](communicator& group) { return large_all_reduce(group, group.memory()); }},
      {"large all_reduce outside of the pool", "all_reduce",
       [](communicator& group) { return large_all_reduce(group, *std::pmr::new_delete_resource()); }},
      {"reduce_leaves in the pool", "reduce_leaves", [](communicator& group) { return leaves(group, group.memory()); }},
      {"reduce_leaves outside of the pool", "reduce_leaves",
       [](communicator& group) { return leaves(group, *std::pmr::new_delete_resource()); }},
      {"all_reduce_fast", "all_reduce_fast",
       [](communicator& group) {
         const bucket_layout layout{{{dtype::f32, 100'000}}};
         auto data = std::make_shared<aligned_buffer>(layout.size_bytes());
         std::shared_ptr<reduced_bucket> result = value_or_throw(group.make_bucket(layout));
         return [&group, layout, data, result] { return group.all_reduce_fast(layout, data->bytes(), *result, 1, 0); };
       }},
      {"barrier", "barrier", [](communicator& group) { return [&group] { return group.barrier(); }; }},
      {"barrier with many words", "barrier",
       [](communicator& group) {
         return [&group, words = std::vector<std::uint64_t>(40)]() mutable { return group.barrier(words); };
       }},
      {"reduce_scatter", "reduce_scatter",
       [](communicator& group) {
         return [&group, in = std::vector<float>(std::size_t{50'000} * group.world_size()),
                 out = std::vector<float>(50'000)]() mutable { return group.reduce_scatter<float>(in, out); };
       }},
      {"all_gather", "all_gather",
       [](communicator& group) {
         return [&group, in = std::vector<float>(50'000),
                 out = std::vector<float>(std::size_t{50'000} * group.world_size())]() mutable {
           return group.all_gather<float>(in, out);
         };
       }},
      {"all_gather_bytes", "all_gather_bytes",
       [](communicator& group) {
         return [&group, mine = std::vector<std::byte>(std::size_t{100'000} * group.rank().value)]() -> expected<void> {
           auto all = group.all_gather_bytes(mine);
           return all ? expected<void>{} : fail(all.error());
         };
       }},
      {"broadcast", "broadcast",
       [](communicator& group) {
         return [&group, data = std::vector<float>(50'000), turn = 0u]() mutable {
           return group.broadcast(std::span{data}, rank_id{turn++ % group.world_size()});
         };
       }},
      {"all_to_all", "all_to_all",
       [](communicator& group) {
         const auto n = 20'000 * group.world_size();
         return [&group, in = std::vector<float>(n), out = std::vector<float>(n)]() mutable {
           return group.all_to_all<float>(in, out);
         };
       }},
      {"messages in a ring", "receive",
       [](communicator& group) {
         return [&group, out = std::vector<std::byte>(30'000), in = std::vector<std::byte>(30'000)]() mutable {
           const auto n = group.world_size();
           const auto me = group.rank().value;
           auto sent = group.send(rank_id{(me + 1) % n}, out);
           return sent ? group.receive(rank_id{(me + n - 1) % n}, in) : sent;
         };
       }},
  };
  return kinds;
}

} // namespace troupe::collectives::testing

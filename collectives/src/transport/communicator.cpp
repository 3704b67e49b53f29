#include "transport/communicator.hpp"

#include "transport/call_checks.hpp"
#include "tree/private_bucket.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <numeric>
#include <utility>

namespace troupe::collectives {

namespace {

std::uint32_t rounds(std::uint32_t world_size) noexcept {
  return root_level(world_size);
}

} // namespace

transport_communicator::transport_communicator(std::unique_ptr<transport> underlying, generation_id generation)
    : messages_(std::move(underlying)), generation_(generation), everybody_(messages_.underlying().world_size()) {
  std::iota(everybody_.begin(), everybody_.end(), 0u);
}

transport_communicator::~transport_communicator() {
  stop_started_calls();
}

expected<std::unique_ptr<reduced_bucket>> transport_communicator::make_bucket(const bucket_layout& layout,
                                                                              std::vector<byte_range> parts) {
  TROUPE_TRY(check_parts(layout, parts));
  return std::make_unique<private_bucket>(layout.size_bytes(), std::move(parts));
}

expected<void> transport_communicator::begin(const call_record& call) {
  wait_for_started_calls();
  return messages_.begin(call);
}

expected<void> transport_communicator::check_peer(rank_id peer) const {
  if (peer.value < world_size() && peer.value != rank().value)
    return {};
  return fail(errc::invalid_argument,
              fmt::format("rank {} cannot exchange messages with rank {} of {}; name another rank of the group", rank(),
                          peer, world_size()));
}

const finish_plan& transport_communicator::rank_plan() {
  if (!rank_plan_)
    rank_plan_ = std::make_unique<finish_plan>(*plan_finish(world_size(), even_ownership(world_size(), world_size())));
  return *rank_plan_;
}

expected<void> transport_communicator::all_reduce(dtype type, reduce_op op, std::span<std::byte> data) {
  TROUPE_TRY(check_elements(type, data.size()));
  TROUPE_TRY(begin(reduction_call(call_kind::all_reduce, type, op, data.size())));
  if (data.empty())
    return messages_.finish();
  const bucket_layout layout{{{type, data.size() / size_of(type)}}};
  const auto sums = layout.sums();
  const auto divisor = op == reduce_op::mean ? world_size() : std::uint64_t{1};
  const message_reduction what{
      rank_plan(), layout,
      sums,        op,
      divisor,     over_messages_.spread(rank_plan(), {0, data.size()}, world_size(), latency_),
      everybody_,  rank().value,
      0,           messages_.underlying().piece_bytes(),
      latency_};
  const std::byte* mine = data.data();
  if (what.is_narrow()) {
    copy_.reserve(sums.size_bytes());
    widen(type, copy_.data(), data.data(), data.size() / size_of(type));
    mine = copy_.data();
  } else if (what.slices[rank().value].size_bytes() == data.size() && world_size() > 1) {
    // Data that is sent as a whole must not change meanwhile.
    copy_.reserve(data.size());
    std::memcpy(copy_.data(), data.data(), data.size());
    mine = copy_.data();
  }
  TROUPE_TRY(over_messages_.reduce_and_spread(what, {&mine, 1}, data.data()));
  return messages_.finish();
}

expected<void> transport_communicator::all_reduce_fast(const bucket_layout& layout,
                                                       std::span<const std::byte> contribution, reduced_bucket& result,
                                                       std::uint64_t divisor, std::size_t part) {
  TROUPE_TRY(check_contribution(layout, contribution, divisor));
  TROUPE_TRY(check_result(result, layout, part));
  auto call = moving_call(call_kind::all_reduce_fast, result.parts()[part].size_bytes());
  call.detail = digest_of(layout, 0, {}, divisor, result.parts()[part]);
  const auto* mine = contribution.data();
  return reduce_bucket(call, result, {layout, operand_kind::contributions, {&mine, 1}, divisor, part});
}

expected<void> transport_communicator::reduce_leaves(const bucket_layout& layout, std::uint32_t shards,
                                                     std::span<const shard_range> ownership,
                                                     std::span<const leaf_partial> partials, reduced_bucket& result,
                                                     std::uint64_t divisor, std::size_t part) {
  // Started calls use the plan.
  wait_for_started_calls();
  TROUPE_TRY(leaves_.refresh(shards, ownership, world_size()));
  TROUPE_TRY(check_partials(layout, *leaves_.finish, rank().value, partials, divisor));
  TROUPE_TRY(check_result(result, layout, part));
  auto call = moving_call(call_kind::reduce_leaves, result.parts()[part].size_bytes());
  call.detail = digest_of(layout, shards, ownership, divisor, result.parts()[part]);
  mine_.clear();
  for (const auto& partial : partials)
    mine_.push_back(partial.data);
  return reduce_bucket(call, result, {layout, operand_kind::sums, mine_, divisor, part});
}

expected<void> transport_communicator::reduce_bucket(const call_record& call, reduced_bucket& result,
                                                     const bucket_reduction& what) {
  if (auto begun = begin(call); !begun || call.size_bytes == 0)
    return over(std::move(begun));
  return over(reduce_into(result, what));
}

const finish_plan& transport_communicator::plan_of(operand_kind operands) {
  return operands == operand_kind::sums ? *leaves_.finish : rank_plan();
}

expected<void> transport_communicator::check_result(reduced_bucket& result, const bucket_layout& layout,
                                                    std::size_t part) const {
  return check_made_here<private_bucket>(result, layout, part);
}

expected<void> transport_communicator::reduce_into(reduced_bucket& result, const bucket_reduction& what) {
  const auto& layout = what.layout;
  const auto range = result.parts()[what.part];
  const auto sums = layout.sums();
  const message_reduction spread_over_all{plan_of(what.operands),
                                          layout,
                                          sums,
                                          reduce_op::sum,
                                          what.divisor,
                                          over_messages_.spread(plan_of(what.operands), range, world_size(), latency_),
                                          everybody_,
                                          rank().value,
                                          0,
                                          messages_.underlying().piece_bytes(),
                                          latency_};
  auto mine = what.mine;
  const std::byte* widened = nullptr;
  if (what.operands == operand_kind::contributions && spread_over_all.is_narrow()) {
    copy_.reserve(sums.size_bytes());
    widen(layout, range, copy_.data() + layout.offset_in_sums(range.first), mine[0] + range.first);
    widened = copy_.data();
    mine = {&widened, 1};
  }
  return over_messages_.reduce_and_spread(spread_over_all, mine, static_cast<private_bucket&>(result).data());
}

expected<void> transport_communicator::over(expected<void> result) {
  if (!result)
    return result;
  return messages_.finish();
}

expected<void> transport_communicator::reduce_scatter(dtype type, reduce_op op, std::span<const std::byte> input,
                                                      std::span<std::byte> output) {
  TROUPE_TRY(check_elements(type, output.size()));
  TROUPE_TRY(check_blocks(input.size(), output.size(), world_size(), "reduce_scatter input"));
  TROUPE_TRY(begin(reduction_call(call_kind::reduce_scatter, type, op, input.size())));
  if (output.empty())
    return messages_.finish();
  const bucket_layout layout{{{type, input.size() / size_of(type)}}};
  const auto sums = layout.sums();
  const auto divisor = op == reduce_op::mean ? world_size() : std::uint64_t{1};
  message_reduction what{rank_plan(), layout,
                         sums,        op,
                         divisor,     std::vector<byte_range>(world_size()),
                         everybody_,  rank().value,
                         0,           messages_.underlying().piece_bytes()};
  for (std::uint32_t r = 0; r < world_size(); ++r)
    what.slices[r] = {r * output.size(), (r + std::uint64_t{1}) * output.size()};
  const auto* mine = input.data();
  if (what.is_narrow()) {
    copy_.reserve(sums.size_bytes());
    widen(type, copy_.data(), input.data(), input.size() / size_of(type));
    mine = copy_.data();
  }
  TROUPE_TRY(over_messages_.reduce_own_slice(what, {&mine, 1}, output.data()));
  return messages_.finish();
}

expected<void> transport_communicator::all_gather(std::span<const std::byte> input, std::span<std::byte> output) {
  TROUPE_TRY(check_blocks(output.size(), input.size(), world_size(), "all_gather output"));
  TROUPE_TRY(begin(moving_call(call_kind::all_gather, input.size())));
  const auto n = world_size();
  const auto me = rank().value;
  if (!input.empty()) {
    for (std::uint32_t i = 1; i < n; ++i)
      messages_.receive((me + n - i) % n, output.data() + (me + n - i) % n * input.size(), input.size());
    for (std::uint32_t i = 1; i < n; ++i)
      messages_.send((me + i) % n, input.data(), input.size());
    std::memmove(output.data() + me * input.size(), input.data(), input.size());
  }
  return messages_.finish();
}

expected<std::vector<std::vector<std::byte>>>
transport_communicator::all_gather_bytes(std::span<const std::byte> mine) {
  TROUPE_TRY(begin(moving_call(call_kind::all_gather_bytes, 0)));
  const auto n = world_size();
  const auto me = rank().value;
  std::vector<std::uint64_t> sizes(n, mine.size());
  const std::uint64_t my_size = mine.size();
  std::vector<transport::ticket> received(n);
  for (std::uint32_t r = 0; r < n; ++r)
    if (r != me)
      received[r] = messages_.receive(r, reinterpret_cast<std::byte*>(&sizes[r]), sizeof(std::uint64_t), first_phase);
  for (std::uint32_t i = 1; i < n; ++i)
    messages_.send((me + i) % n, reinterpret_cast<const std::byte*>(&my_size), sizeof(std::uint64_t), first_phase);
  std::vector<std::vector<std::byte>> result(n);
  result[me].assign(mine.begin(), mine.end());
  for (std::uint32_t i = 1; i < n; ++i)
    messages_.send((me + i) % n, mine.data(), mine.size(), second_phase);
  for (std::uint32_t r = 0; r < n; ++r) {
    if (r == me)
      continue;
    TROUPE_TRY(messages_.wait(received[r]));
    result[r].resize(sizes[r]);
    if (sizes[r] != 0)
      messages_.receive(r, result[r].data(), sizes[r], second_phase);
  }
  TROUPE_TRY(messages_.finish());
  return result;
}

/// A binomial tree: rank root + v receives from the rank at v with its lowest bit cleared.
expected<void> transport_communicator::broadcast(std::span<std::byte> data, rank_id root) {
  const auto n = world_size();
  if (root.value >= n)
    return fail(errc::invalid_argument,
                fmt::format("broadcast: root {} is not one of the {} ranks; name a rank of the group", root, n));
  TROUPE_TRY(begin(moving_call(call_kind::broadcast, data.size(), root.value)));
  if (data.empty())
    return messages_.finish();
  const auto v = (rank().value + n - root.value) % n;
  const auto real = [&](std::uint32_t x) { return (x + root.value) % n; };
  std::uint32_t bit = 1;
  while (bit < n && (v & bit) == 0)
    bit <<= 1;
  if (v != 0)
    TROUPE_TRY(messages_.wait(messages_.receive(real(v - bit), data.data(), data.size())));
  for (bit >>= 1; bit != 0; bit >>= 1)
    if (v + bit < n)
      messages_.send(real(v + bit), data.data(), data.size());
  return messages_.finish();
}

expected<void> transport_communicator::all_to_all(std::span<const std::byte> input, std::span<std::byte> output) {
  const auto n = world_size();
  const auto me = rank().value;
  TROUPE_TRY(check_blocks(input.size(), output.size() / n, n, "all_to_all input"));
  TROUPE_TRY(check_blocks(output.size(), input.size() / n, n, "all_to_all output"));
  TROUPE_TRY(begin(moving_call(call_kind::all_to_all, input.size())));
  const auto block = input.size() / n;
  if (block != 0) {
    for (std::uint32_t i = 1; i < n; ++i)
      messages_.receive((me + n - i) % n, output.data() + (me + n - i) % n * block, block);
    for (std::uint32_t i = 1; i < n; ++i)
      messages_.send((me + i) % n, input.data() + (me + i) % n * block, block);
    std::memmove(output.data() + me * block, input.data() + me * block, block);
  }
  return messages_.finish();
}

expected<void> transport_communicator::barrier(std::span<std::uint64_t> words) {
  TROUPE_TRY(begin(moving_call(call_kind::barrier, words.size_bytes())));
  TROUPE_TRY(spread_maximum(words, everybody_, rank().value, latency_));
  return messages_.finish();
}

/// Dissemination: in round k a rank sends what it knows to the rank 2^k further. A word may be counted twice, which
/// does not change a maximum. Over long distances everything goes to all at once. The longest latency goes along, so
/// that all ranks know it afterwards.
expected<void> transport_communicator::spread_maximum(std::span<std::uint64_t> words,
                                                      std::span<const std::uint32_t> members, std::uint32_t me,
                                                      std::chrono::nanoseconds& latency) {
  const auto n = static_cast<std::uint32_t>(members.size());
  const auto width = words.size() + 1;
  const auto size_bytes = width * sizeof(std::uint64_t);
  const auto is_at_once = prefers_one_round(n, size_bytes, latency);
  const auto exchanges = is_at_once ? n - 1 : rounds(n);
  const auto distance = [&](std::uint32_t k) { return is_at_once ? k + 1 : 1u << k; };
  auto longest = static_cast<std::uint64_t>(std::max(latency, messages_.underlying().latency()).count());
  words_.assign(2 * width * exchanges, 0);
  const auto outgoing = [&](std::uint32_t k) { return words_.data() + 2 * width * k; };
  const auto incoming = [&](std::uint32_t k) { return outgoing(k) + width; };
  const auto post = [&](std::uint32_t k) {
    std::ranges::copy(words, outgoing(k));
    outgoing(k)[words.size()] = longest;
    messages_.send(members[(me + distance(k)) % n], reinterpret_cast<const std::byte*>(outgoing(k)), size_bytes, k);
  };
  std::vector<transport::ticket> received(exchanges);
  for (std::uint32_t k = 0; k < exchanges; ++k)
    received[k] = messages_.receive(members[(me + n - distance(k)) % n], reinterpret_cast<std::byte*>(incoming(k)),
                                    size_bytes, k);
  for (std::uint32_t k = 0; is_at_once && k < exchanges; ++k)
    post(k);
  for (std::uint32_t k = 0; k < exchanges; ++k) {
    if (!is_at_once)
      post(k);
    TROUPE_TRY(messages_.wait(received[k]));
    for (std::size_t i = 0; i < words.size(); ++i)
      words[i] = std::max(words[i], incoming(k)[i]);
    longest = std::max(longest, incoming(k)[words.size()]);
  }
  latency = std::chrono::nanoseconds{longest};
  return {};
}

expected<void> transport_communicator::send(rank_id peer, std::span<const std::byte> data) {
  TROUPE_TRY(check_peer(peer));
  TROUPE_TRY(begin(moving_call(call_kind::send, data.size(), peer.value)));
  messages_.send(peer.value, data.data(), data.size());
  return messages_.finish();
}

expected<void> transport_communicator::receive(rank_id peer, std::span<std::byte> data) {
  TROUPE_TRY(check_peer(peer));
  TROUPE_TRY(begin(moving_call(call_kind::receive, data.size(), peer.value)));
  if (!data.empty())
    messages_.receive(peer.value, data.data(), data.size());
  return messages_.finish();
}

} // namespace troupe::collectives

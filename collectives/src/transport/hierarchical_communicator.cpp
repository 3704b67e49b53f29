#include <troupe/collectives/hierarchical_communicator.hpp>

#include "shm/bucket.hpp"
#include "shm/group.hpp"
#include "shm/pages.hpp"
#include "shm/reducer.hpp"
#include "shm/transport.hpp"
#include "tcp/connect.hpp"
#include "transport/call_checks.hpp"
#include "transport/communicator.hpp"
#include "transport/mixed_transport.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fmt/format.h>
#include <map>
#include <utility>

namespace troupe::collectives {

namespace {

/// The piece size of `all_reduce`.
constexpr std::uint64_t chunk_bytes = 4 << 20;

/// What makes another rank of a host worth its messages to the other hosts.
constexpr std::uint64_t least_column_bytes = 128 << 10;

/// Which ranks share memory.
struct topology {
  /// The ranks of each host in ascending order; the first is its leader. Hosts are ordered by their leaders.
  std::vector<std::vector<std::uint32_t>> hosts;
  std::vector<std::uint32_t> leaders;
  /// The ranks of the smallest host.
  std::uint32_t width = 0;
  /// This rank's host, and its index there.
  std::uint32_t host = 0;
  std::uint32_t local_rank = 0;

  [[nodiscard]] const std::vector<std::uint32_t>& local_ranks() const noexcept { return hosts[host]; }
  [[nodiscard]] bool is_leader() const noexcept { return local_rank == 0; }
};

topology make_topology(const std::vector<std::uint32_t>& host_of, std::uint32_t me) {
  topology result;
  std::map<std::uint32_t, std::size_t> place;
  for (std::uint32_t rank = 0; rank < host_of.size(); ++rank) {
    const auto [found, is_new] = place.emplace(host_of[rank], result.hosts.size());
    if (is_new) {
      result.hosts.emplace_back();
      result.leaders.push_back(rank);
    }
    if (rank == me) {
      result.host = static_cast<std::uint32_t>(found->second);
      result.local_rank = static_cast<std::uint32_t>(result.hosts[found->second].size());
    }
    result.hosts[found->second].push_back(rank);
  }
  const auto smallest = std::ranges::min_element(result.hosts, {}, &std::vector<std::uint32_t>::size);
  result.width = static_cast<std::uint32_t>(smallest->size());
  return result;
}

/// A reduction in two levels: first among the ranks of each host, then between hosts.
struct two_level_plan {
  std::uint32_t shards = 0;
  std::vector<shard_range> ownership;
  finish_plan inside;
  finish_plan between;
};

two_level_plan make_plan(const topology& where, std::uint32_t shards, std::span<const shard_range> ownership) {
  two_level_plan result{shards, {ownership.begin(), ownership.end()}, {}, {}};
  std::vector<std::vector<tree_node>> of_hosts;
  for (std::uint32_t h = 0; h < where.hosts.size(); ++h) {
    std::vector<std::vector<tree_node>> of_ranks;
    for (auto rank : where.hosts[h])
      of_ranks.push_back(maximal_nodes(shards, ownership[rank]));
    auto plan = plan_join(shards, of_ranks);
    auto& nodes = of_hosts.emplace_back();
    for (const auto& output : plan.outputs)
      nodes.push_back(output.node);
    if (h == where.host)
      result.inside = std::move(plan);
  }
  result.between = plan_join(shards, of_hosts);
  return result;
}

/// How a part is divided among the ranks of each host, alike on all hosts: rank i of a host moves column i between its
/// host and the others. Short parts are the leaders' alone.
std::vector<byte_range> cut_columns(const topology& where, byte_range part) {
  const auto worth = std::max<std::uint64_t>(part.size_bytes() / least_column_bytes, 1);
  const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(where.width, worth));
  auto result = cut_evenly(part, count, page_bytes);
  result.resize(where.local_ranks().size(), {part.last, part.last});
  return result;
}

class hierarchical_communicator final : public transport_communicator {
 public:
  using communicator::all_reduce;
  using communicator::barrier;

  hierarchical_communicator(topology where, std::shared_ptr<shm_group> group, std::unique_ptr<transport> remote,
                            generation_id generation)
      : transport_communicator(std::make_unique<mixed_transport>(
                                   std::move(remote), std::make_unique<shm_transport>(group), where.local_ranks()),
                               generation),
        piece_bytes_(static_cast<mixed_transport&>(messages_.underlying()).piece_bytes_between_hosts()),
        where_(std::move(where)),
        group_(std::move(group)),
        reducer_(group_) {
    for (const auto& ranks : where_.hosts)
      column_.push_back(ranks[std::min<std::size_t>(where_.local_rank, ranks.size() - 1)]);
  }

  ~hierarchical_communicator() override {
    stop_started_calls();
    group_->leave();
  }

  traffic sent() const noexcept override {
    auto result = transport_communicator::sent();
    result.sent_bytes += reducer_.read_bytes();
    return result;
  }

  std::pmr::memory_resource& memory() noexcept override { return group_->members().process_pool(); }

  expected<std::unique_ptr<reduced_bucket>> make_bucket(const bucket_layout& layout,
                                                        std::vector<byte_range> parts) override {
    TROUPE_TRY(check_parts(layout, parts));
    shm_bucket::slice_table slices;
    for (auto part : parts)
      slices.push_back(cut_columns(where_, part));
    TROUPE_TRY(auto result, shm_bucket::make(group_, layout.size_bytes(), std::move(parts), std::move(slices)));
    return std::unique_ptr<reduced_bucket>{std::move(result)};
  }

  expected<void> all_reduce(dtype type, reduce_op op, std::span<std::byte> data) override {
    TROUPE_TRY(check_elements(type, data.size()));
    if (auto begun = begin(reduction_call(call_kind::all_reduce, type, op, data.size())); !begun || data.empty())
      return over(std::move(begun));
    const auto divisor = op == reduce_op::mean ? world_size() : std::uint64_t{1};
    for (std::size_t at = 0; at < data.size(); at += chunk_bytes)
      if (auto reduced = all_reduce_chunk(type, op, divisor,
                                          data.subspan(at, std::min<std::size_t>(chunk_bytes, data.size() - at)));
          !reduced)
        return over(std::move(reduced));
    return over({});
  }

  expected<void> barrier(std::span<std::uint64_t> words) override {
    if (words.size() > shm::max_words)
      return transport_communicator::barrier(words);
    if (auto begun = begin(moving_call(call_kind::barrier, words.size_bytes())); !begun)
      return over(std::move(begun));
    if (auto there = group_->post_maximum(messages_.call(), words); !there)
      return over(checked(std::move(there)));
    if (where_.is_leader()) {
      if (auto heard = spread_maximum(words, where_.leaders, where_.host, leaders_latency_); !heard)
        return over(std::move(heard));
      std::ranges::copy(words, group_->next_posting().words);
    }
    // The other ranks of this host wait here for the leader's words.
    if (auto there = group_->post(messages_.call()); !there)
      return over(checked(std::move(there)));
    std::copy_n(group_->posting_of(0).words, words.size(), words.begin());
    return over({});
  }

 private:
  expected<void> check_result(reduced_bucket& result, const bucket_layout& layout, std::size_t part) const override {
    return check_made_here<shm_bucket>(result, layout, part);
  }

  expected<void> reduce_into(reduced_bucket& result, const bucket_reduction& what) override {
    const auto& layout = what.layout;
    const auto range = result.parts()[what.part];
    host_operands_.assign(what.mine.begin(), what.mine.end());
    if (const auto sums_bytes = layout.sums().size_bytes();
        what.operands == operand_kind::contributions && sums_bytes != layout.size_bytes()) {
      widened_.reserve(sums_bytes);
      widen(layout, range, widened_.data() + layout.offset_in_sums(range.first), host_operands_[0] + range.first);
      host_operands_[0] = widened_.data();
    }
    const auto& plan = what.operands == operand_kind::sums ? plan_over_leaves() : plan_over_ranks();
    return reduce(plan, layout, reduce_op::sum, what.divisor, static_cast<shm_bucket&>(result), what.part);
  }

  /// The operands are `host_operands_`, which are buckets of sums. Every rank with a column adds what its host has of
  /// it, piece by piece, reduces it with the ranks of the same column, and shows the result to its host.
  expected<void> reduce(const two_level_plan& plan, const bucket_layout& layout, reduce_op op, std::uint64_t divisor,
                        shm_bucket& result, std::size_t part) {
    const auto sums = layout.sums();
    const auto in_sums = [&layout](byte_range x) {
      return byte_range{layout.offset_in_sums(x.first), layout.offset_in_sums(x.last)};
    };
    const auto range = in_sums(result.parts()[part]);
    const tree_reduction inside{plan.inside, sums, sums, op, 1, operand_kind::sums, root_kind::partial_sum};
    group_->next_posting().words[0] = result.own_offset();
    // A host may own no shards; its ranks take part in the rendezvous anyway.
    auto gathered = plan.inside.outputs.empty() ? group_->post(messages_.call())
                                                : reducer_.gather(messages_.call(), inside, host_operands_, range);
    if (!gathered)
      return checked(std::move(gathered));
    const auto columns = result.slices(part);
    const auto column = columns[where_.local_rank];
    if (column.size_bytes() != 0) {
      const auto first = in_sums(column).first;
      reserve_host_sums(plan.inside.outputs.size(), in_sums(column).size_bytes());
      const auto add = [&](byte_range piece) {
        const auto elements = in_sums(piece);
        for (std::size_t k = 0; k < outs_.size(); ++k)
          outs_[k] = host_sums_[k].data() + (elements.first - first);
        if (!outs_.empty())
          reducer_.add(inside, range, elements, outs_);
      };
      const message_reduction what{
          plan.between, layout,      sums,
          op,           divisor,     over_messages_.spread(plan.between, column, where_.hosts.size()),
          column_,      where_.host, column.first,
          piece_bytes_, {},          add};
      TROUPE_TRY(over_messages_.reduce_and_spread(what, host_operands_, result.own_slice(part)));
      TROUPE_TRY(messages_.finish());
    }
    group_->arrive();
    for (std::uint32_t peer = 0; peer < columns.size(); ++peer) {
      if (peer == where_.local_rank || columns[peer].size_bytes() == 0)
        continue;
      if (auto there = group_->wait_for(peer); !there)
        return checked(std::move(there));
      if (auto shown = result.show(peer, group_->posting_of(peer).words[0]); !shown)
        return checked(group_->fail_with(std::move(shown.error())));
    }
    return {};
  }

  /// The operands of what goes between hosts: one sum for each output of the plan inside this host.
  void reserve_host_sums(std::size_t count, std::uint64_t size_bytes) {
    host_sums_.resize(std::max(host_sums_.size(), count));
    outs_.resize(count);
    host_operands_.clear();
    for (std::size_t k = 0; k < count; ++k) {
      host_sums_[k].reserve(size_bytes);
      host_operands_.push_back(host_sums_[k].data());
    }
  }

  expected<void> all_reduce_chunk(dtype type, reduce_op op, std::uint64_t divisor, std::span<std::byte> data) {
    // Use few sizes, because memory that peers read is kept for the generation. The bytes after the data do not matter.
    const auto room = std::bit_ceil(std::max<std::size_t>(data.size(), shm::small_bytes));
    const bucket_layout layout{{{type, room / size_of(type)}}};
    auto& bucket = chunks_[{type, room}];
    if (!bucket) {
      auto made = make_bucket(layout, {});
      if (!made)
        return checked(group_->fail_with(std::move(made.error())));
      bucket.reset(static_cast<shm_bucket*>(made->release()));
    }
    widened_.reserve(layout.sums().size_bytes());
    widen(type, widened_.data(), data.data(), data.size() / size_of(type));
    host_operands_.assign(1, widened_.data());
    TROUPE_TRY(reduce(plan_over_ranks(), layout, op, divisor, *bucket, 0));
    std::memcpy(data.data(), bucket->bytes().data(), data.size());
    return {};
  }

  const two_level_plan& plan_over_leaves() {
    if (leaves_plan_.shards != leaves_.shards || leaves_plan_.ownership != leaves_.ownership)
      leaves_plan_ = make_plan(where_, leaves_.shards, leaves_.ownership);
    return leaves_plan_;
  }

  const two_level_plan& plan_over_ranks() {
    if (rank_plan_.shards == 0)
      rank_plan_ = make_plan(where_, world_size(), even_ownership(world_size(), world_size()));
    return rank_plan_;
  }

  /// A failure inside the host also closes the connections to other hosts.
  expected<void> checked(expected<void> result) {
    if (!result)
      messages_.underlying().abort(result.error());
    return result;
  }

  /// Of what goes between hosts.
  const std::uint64_t piece_bytes_;
  /// As `latency_`, but only the leaders have agreed on it.
  std::chrono::nanoseconds leaders_latency_{0};
  topology where_;
  /// The ranks that have this rank's index on each host.
  std::vector<std::uint32_t> column_;
  std::shared_ptr<shm_group> group_;
  shm_reducer reducer_;
  two_level_plan leaves_plan_;
  two_level_plan rank_plan_;
  /// Operands of the running reduction.
  std::vector<const std::byte*> host_operands_;
  /// A contribution, widened to the type of sums.
  aligned_buffer widened_{group_->members().process_pool()};
  /// What this host has of this rank's column.
  std::vector<aligned_buffer> host_sums_;
  std::vector<std::byte*> outs_;
  std::map<std::pair<dtype, std::size_t>, std::unique_ptr<shm_bucket>> chunks_;
};

} // namespace

expected<std::unique_ptr<communicator>> make_hierarchical_communicator(hierarchical_options options,
                                                                       const address_exchange& addresses,
                                                                       const descriptor_exchange& descriptors) {
  if (options.hosts.size() != options.place.world_size || options.place.rank.value >= options.place.world_size)
    return fail(errc::invalid_argument,
                fmt::format("a hierarchical group of {} ranks got the hosts of {} ranks; pass the host of each rank",
                            options.place.world_size, options.hosts.size()));
  auto where = make_topology(options.hosts, options.place.rank.value);
  const auto& local = where.local_ranks();
  shm_options inside;
  inside.rank = rank_id{where.local_rank};
  inside.world_size = static_cast<std::uint32_t>(local.size());
  inside.generation = options.place.generation;
  inside.deadline = options.place.deadline;
  inside.pool = options.pool;
  inside.results_for_devices = options.results_for_devices;
  for (auto rank : local)
    inside.names.emplace_back(rank);
  // To other hosts only. First, because the exchange of addresses ends for all ranks if one of them is lost.
  std::vector<bool> is_peer(options.hosts.size(), true);
  for (auto rank : local)
    is_peer[rank] = false;
  TROUPE_TRY(auto remote, connect_tcp(options.place, is_peer, addresses));
  TROUPE_TRY(auto group, shm_group::connect(inside, descriptors));
  return std::make_unique<hierarchical_communicator>(std::move(where), std::move(group), std::move(remote),
                                                     options.place.generation);
}

} // namespace troupe::collectives

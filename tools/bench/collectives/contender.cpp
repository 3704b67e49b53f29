#include "contender.hpp"

#include "gloo_ring.hpp"
#include "memory_limit.hpp"
#include "socket_limit.hpp"
#include "ucx_group.hpp"

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/collectives/hierarchical_communicator.hpp>
#include <troupe/collectives/shm_communicator.hpp>
#include <troupe/collectives/summation_tree.hpp>
#include <troupe/collectives/tcp_communicator.hpp>

#include <stdexcept>
#include <utility>

namespace troupe::bench {

namespace {

using namespace collectives;

constexpr std::uint32_t shards = 16;

void check(expected<void> result) {
  if (!result)
    throw exception{std::move(result.error())};
}

shared_floats floats_in(std::pmr::memory_resource& memory, std::uint64_t bytes) {
  // A bucket ends at the end of a cache line.
  const auto room = (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
  auto buffer = std::make_shared<aligned_buffer>(room, memory);
  auto* floats = reinterpret_cast<float*>(buffer->data());
  return {new std::span<float>{floats, bytes / sizeof(float)}, [buffer](std::span<float>* x) { delete x; }};
}

/// Ordinary heap memory.
shared_floats ordinary_floats(std::uint64_t bytes) {
  return floats_in(*std::pmr::new_delete_resource(), bytes);
}

class in_place : public contender {
 public:
  in_place(communicator& group, shared_floats data) : group_(group), data_(std::move(data)) {}

  std::span<float> input() override { return *data_; }
  void run() override { check(group_.all_reduce(*data_)); }
  std::span<const float> result() const override { return *data_; }

 private:
  communicator& group_;
  shared_floats data_;
};

enum class order : std::uint8_t { exact, fast };

/// A gradient bucket. `exact` reduces it as `step.all_reduce()` does, with a share of the shards on each rank.
class bucket final : public contender {
 public:
  bucket(communicator& group, shared_floats data, order how)
      : group_(group),
        data_(std::move(data)),
        layout_({{dtype::f32, data_->size()}}),
        result_(value_or_throw(group_.make_bucket(layout_))),
        ownership_(even_ownership(shards, group_.world_size())),
        how_(how) {
    const auto nodes = maximal_nodes(shards, ownership_[group_.rank().value]);
    if (nodes.size() != 1)
      throw std::runtime_error{"the benchmark accepts 1, 2, 4, 8 or 16 ranks, so that each has one partial sum"};
    partial_ = {nodes[0], reinterpret_cast<const std::byte*>(data_->data())};
  }

  std::span<float> input() override { return *data_; }

  void run() override {
    if (how_ == order::exact)
      check(group_.reduce_leaves(layout_, shards, ownership_, {&partial_, 1}, *result_));
    else
      check(group_.all_reduce_fast(layout_, {partial_.data, layout_.size_bytes()}, *result_));
  }

  std::span<const float> result() const override {
    return {reinterpret_cast<const float*>(result_->bytes().data()), data_->size()};
  }

 private:
  communicator& group_;
  shared_floats data_;
  bucket_layout layout_;
  std::unique_ptr<reduced_bucket> result_;
  std::vector<shard_range> ownership_;
  leaf_partial partial_;
  order how_;
};

/// The lower bound of the exact scheme: reads a slice of all ranks' data and writes their sum, without synchronisation.
class limit final : public contender {
 public:
  limit(rank_link& link, shared_pool& pool, shared_floats data)
      : data_(std::move(data)),
        first_(data_->size() * link.rank() / link.size()),
        last_(data_->size() * (link.rank() + 1) / link.size()),
        sum_(floats_in(pool, (last_ - first_) * sizeof(float))) {
    const auto offset = pool.offset_of(data_->data());
    const auto offsets = link.exchange({reinterpret_cast<const char*>(&offset), sizeof(offset)});
    const auto own = pool.fd();
    const auto files = link.exchange_descriptors({&own, 1});
    for (std::uint32_t r = 0; r < link.size(); ++r) {
      if (r == link.rank()) {
        slices_.push_back(data_->data() + first_);
        continue;
      }
      std::uint64_t theirs = 0;
      offsets[r].copy(reinterpret_cast<char*>(&theirs), sizeof(theirs));
      peers_.push_back(mapped_block{files[r].at(0).get(), theirs, data_->size_bytes()});
      slices_.push_back(reinterpret_cast<const float*>(peers_.back().data()) + first_);
    }
  }

  std::span<float> input() override { return *data_; }
  void run() override { sum_slices(sum_->data(), slices_, last_ - first_); }
  std::span<const float> result() const override { return *sum_; }
  std::uint64_t first_element() const override { return first_; }

 private:
  shared_floats data_;
  std::uint64_t first_;
  std::uint64_t last_;
  shared_floats sum_;
  std::vector<mapped_block> peers_;
  std::vector<const float*> slices_;
};

/// The lower bound over TCP: the same bytes over plain sockets, and their sum.
class socket_limit final : public contender {
 public:
  socket_limit(plain_sockets& sockets, shared_floats data) : sockets_(sockets), data_(std::move(data)) {}

  std::span<float> input() override { return *data_; }
  void run() override { sockets_.sum(*data_); }
  std::span<const float> result() const override { return *data_; }

 private:
  plain_sockets& sockets_;
  shared_floats data_;
};

/// No data at all: only the time that all ranks need to hear of each other.
class barrier_only final : public contender {
 public:
  explicit barrier_only(communicator& group) : group_(group) {}

  std::span<float> input() override { return {}; }
  void run() override { check(group_.barrier()); }
  std::span<const float> result() const override { return {}; }

 private:
  communicator& group_;
};

/// Touches the data as a training step does: the contribution has just been written, and the sum is read. One element
/// of each cache line is enough.
class touched final : public contender {
 public:
  explicit touched(std::unique_ptr<contender> inner) : inner_(std::move(inner)) {}

  std::span<float> input() override { return inner_->input(); }

  void run() override {
    // Volatile, so that the compiler keeps every access.
    volatile float* input = inner_->input().data();
    for (std::size_t i = 0; i < inner_->input().size(); i += line_elements)
      input[i] = input[i];
    inner_->run();
    const auto sum = inner_->result();
    const volatile float* at = sum.data();
    for (std::size_t i = 0; i < sum.size(); i += line_elements)
      static_cast<void>(at[i]);
  }

  std::span<const float> result() const override { return inner_->result(); }
  std::uint64_t first_element() const override { return inner_->first_element(); }

 private:
  static constexpr std::size_t line_elements = alignment_bytes / sizeof(float);

  std::unique_ptr<contender> inner_;
};

constexpr std::string_view touched_suffix = "-touched";

constexpr std::string_view names[] = {"exact",
                                      "fast",
                                      "in-place",
                                      "unregistered",
                                      "limit",
                                      "limit-touched",
                                      "exact-touched",
                                      "in-place-touched",
                                      "gloo",
                                      "tcp",
                                      "tcp-fast",
                                      "tcp-in-place",
                                      "tcp-barrier",
                                      "tcp-encrypted",
                                      "tcp-encrypted-barrier",
                                      "tcp-limit",
                                      "two-hosts",
                                      "two-hosts-encrypted",
                                      "ucx",
                                      "ucx-barrier"};

} // namespace

std::span<const std::string_view> contender_names() noexcept {
  return names;
}

contender_factory::contender_factory(rank_link& link, std::string host)
    : link_(link), host_(std::move(host)), pool_(value_or_throw(shared_pool::make())) {}

contender_factory::~contender_factory() = default;

communicator& contender_factory::shm() {
  if (!shm_) {
    shm_options options;
    options.rank = rank_id{link_.rank()};
    options.world_size = link_.size();
    options.generation = generation_id{1};
    options.pool = pool_;
    shm_ = value_or_throw(make_shm_communicator(options, [this](std::span<const int> mine) {
      return expected<std::vector<std::vector<unique_fd>>>{link_.exchange_descriptors(mine)};
    }));
  }
  return *shm_;
}

communicator& contender_factory::tcp(cipher how) {
  auto& group = how == cipher::none ? tcp_ : tcp_encrypted_;
  if (!group) {
    tcp_options options;
    options.rank = rank_id{link_.rank()};
    options.world_size = link_.size();
    options.generation = generation_id{1};
    options.encrypted = how == cipher::tls;
    options.host = host_;
    group = value_or_throw(make_tcp_communicator(
        options, [this](const std::string& mine) { return expected<std::vector<std::string>>{link_.exchange(mine)}; }));
    // As in each step of training: with it the ranks learn how far they are from each other.
    check(group->barrier());
  }
  return *group;
}

/// The first half of the ranks is one host, the other half another.
communicator& contender_factory::two_hosts(cipher how) {
  auto& group = how == cipher::none ? two_hosts_ : two_hosts_encrypted_;
  if (!group) {
    hierarchical_options options;
    options.place.rank = rank_id{link_.rank()};
    options.place.world_size = link_.size();
    options.place.generation = generation_id{1};
    options.place.encrypted = how == cipher::tls;
    options.place.host = host_;
    options.pool = pool_;
    const auto host_of = [this](std::uint32_t rank) { return 2 * rank / link_.size(); };
    for (std::uint32_t r = 0; r < link_.size(); ++r)
      options.hosts.push_back(host_of(r));
    group = value_or_throw(make_hierarchical_communicator(
        std::move(options),
        [this](const std::string& mine) { return expected<std::vector<std::string>>{link_.exchange(mine)}; },
        [this, host_of](std::span<const int> mine) {
          auto all = link_.exchange_descriptors(mine);
          std::vector<std::vector<unique_fd>> here;
          for (std::uint32_t r = 0; r < all.size(); ++r)
            if (host_of(r) == host_of(link_.rank()))
              here.push_back(std::move(all[r]));
          return expected<std::vector<std::vector<unique_fd>>>{std::move(here)};
        }));
  }
  return *group;
}

communicator& contender_factory::ucx() {
  if (!ucx_) {
    ucx_ = connect_ucx(link_);
    check(ucx_->barrier());
  }
  return *ucx_;
}

shared_floats contender_factory::registered(std::uint64_t bytes) {
  auto result = registered_.lock();
  if (!result || result->size_bytes() != bytes)
    registered_ = result = floats_in(shm().memory(), bytes);
  return result;
}

std::unique_ptr<contender> contender_factory::make(std::string_view name, std::uint64_t bytes) {
  if (name.ends_with(touched_suffix))
    return std::make_unique<touched>(make(name.substr(0, name.size() - touched_suffix.size()), bytes));
  if (name == "exact" || name == "fast")
    return std::make_unique<bucket>(shm(), registered(bytes), name == "exact" ? order::exact : order::fast);
  if (name == "in-place")
    return std::make_unique<in_place>(shm(), registered(bytes));
  if (name == "unregistered")
    return std::make_unique<in_place>(shm(), ordinary_floats(bytes));
  if (name == "limit")
    return std::make_unique<limit>(link_, *pool_, registered(bytes));
  if (name == "gloo")
    return (gloo_ ? gloo_ : gloo_ = connect_gloo(link_))->make(ordinary_floats(bytes));
  if (name == "tcp-limit") {
    if (!sockets_)
      sockets_ = std::make_unique<plain_sockets>(link_);
    return std::make_unique<socket_limit>(*sockets_, ordinary_floats(bytes));
  }
  if (name.starts_with("two-hosts")) {
    auto& group = two_hosts(name == "two-hosts" ? cipher::none : cipher::tls);
    return std::make_unique<bucket>(group, floats_in(group.memory(), bytes), order::exact);
  }
  auto& group = name.starts_with("ucx") ? ucx() : tcp(name.starts_with("tcp-encrypted") ? cipher::tls : cipher::none);
  if (name.ends_with("-barrier"))
    return std::make_unique<barrier_only>(group);
  if (name == "tcp-in-place")
    return std::make_unique<in_place>(group, ordinary_floats(bytes));
  return std::make_unique<bucket>(group, floats_in(group.memory(), bytes),
                                  name == "tcp-fast" ? order::fast : order::exact);
}

} // namespace troupe::bench

#include "worker/step/gradient_exchange.hpp"

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/collectives/leaf_accumulator.hpp>
#include <troupe/collectives/reduction.hpp>
#include <troupe/runtime/fingerprint.hpp>

#include <algorithm>

namespace troupe::runtime {

namespace {

class host_exchange final : public gradient_exchange {
 public:
  host_exchange(collectives::communicator& group, const step_bucket& bucket, exchange_terms terms)
      : group_(group),
        bucket_(bucket),
        terms_(std::move(terms)),
        sums_(value_or_throw(collectives::leaf_accumulator::make(bucket.layout(), terms_.shards, group.memory()))),
        result_(value_or_throw(group.make_bucket(bucket.layout(), {bucket.parts().begin(), bucket.parts().end()}))) {}

  ~host_exchange() override {
    // Started reductions use this object's memory.
    wait_until_idle();
  }

  void begin(shard_range range) override {
    started_.clear();
    sums_.begin(range);
  }

  bucket_memory next(shard_id shard) override { return sums_.next(shard); }

  /// The part of the last shard's contribution joins the sums of the others, and then those of the other ranks.
  void start(std::size_t part) override {
    if (started_.empty())
      sums_.close();
    sums_.finish(bucket_.parts()[part]);
    started_.push_back(group_.start([this, part] { return reduce(part); }));
  }

  std::size_t started() const noexcept override { return started_.size(); }

  void finish() override {
    const auto parts = bucket_.parts().size();
    if (started_.empty()) {
      // Nothing is under way: this thread does it itself.
      sums_.end();
      for (std::size_t turn = 0; turn < parts; ++turn)
        value_or_throw(reduce(bucket_.part_at(turn)));
      return;
    }
    while (started_.size() < parts)
      start(bucket_.part_at(started_.size()));
    for (const auto& call : started_)
      value_or_throw(call.wait());
  }

  void wait_until_idle() noexcept override {
    for (const auto& call : started_)
      (void)call.wait();
  }

  bool is_under_way() const override { return !std::ranges::all_of(started_, &collectives::pending_call::is_done); }

  reduced_memory result() const noexcept override { return result_->bytes(); }

  std::span<const double> metrics() const noexcept override {
    const auto bytes = result_->bytes().subspan(bucket_.metrics_offset());
    return {reinterpret_cast<const double*>(bytes.data()), bucket_.layout().segments()[1].elements};
  }

  void read(bucket_memory from, std::span<std::byte> to) override {
    std::ranges::copy(std::get<std::span<std::byte>>(from), to.begin());
  }

 private:
  /// In the training thread or the group's.
  expected<void> reduce(std::size_t part) {
    prepare_arithmetic_thread();
    if (terms_.is_fast)
      return group_.all_reduce_fast(bucket_.layout(), add_up_partials(bucket_.parts()[part]), *result_, terms_.divisor,
                                    part);
    return group_.reduce_leaves(bucket_.layout(), terms_.shards, terms_.ownership, sums_.partials(), *result_,
                                terms_.divisor, part);
  }

  /// The sum of this rank's shards, where the order does not matter.
  std::span<const std::byte> add_up_partials(collectives::byte_range part) {
    const auto size = bucket_.size_bytes();
    const auto partials = sums_.partials();
    if (partials.size() == 1)
      return {partials[0].data, size};
    added_.reserve(size);
    auto bucket = added_.bytes().first(size);
    std::ranges::fill(bucket.subspan(part.first, part.size_bytes()), std::byte{0});
    for (const auto& partial : partials)
      collectives::combine(bucket_.layout(), part, collectives::reduce_op::sum, bucket.data() + part.first,
                           bucket.data() + part.first, partial.data + part.first);
    return bucket;
  }

  collectives::communicator& group_;
  const step_bucket& bucket_;
  exchange_terms terms_;
  collectives::leaf_accumulator sums_;
  std::unique_ptr<collectives::reduced_bucket> result_;
  std::vector<collectives::pending_call> started_;
  collectives::aligned_buffer added_{*std::pmr::new_delete_resource()};
};

} // namespace

std::unique_ptr<gradient_exchange> make_host_exchange(collectives::communicator& group, const step_bucket& bucket,
                                                      exchange_terms terms) {
  return std::make_unique<host_exchange>(group, bucket, std::move(terms));
}

} // namespace troupe::runtime

#include "worker/step/redundant_checker.hpp"

#include <troupe/serialization/files/digest.hpp>

#include <algorithm>
#include <utility>

namespace troupe::runtime {

namespace {

template <class Number>
std::span<const Number> as_numbers(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const Number*>(bytes.data()), bytes.size() / sizeof(Number)};
}

} // namespace

void redundant_checker::begin(step_id step, std::uint32_t shards, std::span<const shard_range> ownership,
                              rank_id mine) {
  step_ = step;
  mine_ = mine;
  open_.reset();
  second_bucket_.reset();
  check_ = choose_redundant_check(step, every_, shards, ownership);
}

std::optional<shard_id> redundant_checker::again() const noexcept {
  return check_ && check_->other == mine_ ? std::optional{check_->shard} : std::nullopt;
}

void redundant_checker::on_open(shard_id shard, bucket_memory bucket) {
  if (check_ && check_->shard == shard)
    open_ = bucket;
}

void redundant_checker::keep_first(gradient_exchange& exchange) {
  if (!open_)
    return;
  const auto size = bucket_.size_bytes();
  first_.reserve(size);
  exchange.read(*std::exchange(open_, std::nullopt), first_.bytes().first(size));
}

bucket_memory redundant_checker::open_again() {
  const auto size = bucket_.size_bytes();
  if (plan_.on_gpu) {
    auto& gpu = group_.gpu();
    if (second_on_device_.size_bytes() < size)
      second_on_device_ = value_or_throw(collectives::device_memory::make(gpu.device, size));
    value_or_throw(gpu.device->clear(second_on_device_.address(), size, gpu.stream.handle()));
    second_bucket_ = second_on_device_.bytes().first(size);
  } else {
    second_.reserve(size);
    const auto bucket = second_.bytes().first(size);
    std::ranges::fill(bucket, std::byte{0});
    second_bucket_ = bucket;
  }
  return *second_bucket_;
}

/// Of the named parts of the gradient, or the sums of the metrics behind them.
std::span<const std::byte> redundant_checker::piece(std::span<const std::byte> bucket, std::size_t part) const {
  if (part < pieces_.size())
    return bucket.subspan(pieces_[part].first * sizeof(float), pieces_[part].elements * sizeof(float));
  return bucket.subspan(bucket_.metrics_offset(), plan_.metrics.size() * sizeof(double));
}

/// From the results that this rank has, the owner's first.
std::vector<std::byte> redundant_checker::take_both(const taker& take) const {
  std::vector<std::byte> result;
  const auto size = bucket_.size_bytes();
  if (check_->owner == mine_)
    take(std::span{first_.bytes()}.first(size), result);
  if (again())
    take(std::span{second_.bytes()}.first(size), result);
  return result;
}

std::pair<std::vector<std::byte>, std::vector<std::byte>> redundant_checker::exchange_pieces(std::size_t bytes,
                                                                                             const taker& take) {
  auto all = value_or_throw(group_.communicator().all_gather_bytes(take_both(take)));
  const auto& first = all[check_->owner.value];
  const auto& second = all[check_->other.value];
  if (first.size() < bytes || second.size() < bytes)
    throw exception{errc::mismatch,
                    "the ranks disagree about which shard is computed twice: an invariant of Troupe is broken"};
  const auto count = static_cast<std::ptrdiff_t>(bytes);
  return {{first.begin(), first.begin() + count}, {second.end() - count, second.end()}};
}

void redundant_checker::compare(gradient_exchange& exchange, const std::vector<gradient_tensor>& names,
                                const std::string& frameworks) {
  if (!check_)
    return;
  if (plan_.on_gpu && again()) {
    second_.reserve(bucket_.size_bytes());
    exchange.read(*second_bucket_, second_.bytes().first(bucket_.size_bytes()));
  }
  pieces_ = parts_of_gradient(names, plan_.gradient_elements);
  // The metrics are the last piece.
  const auto count = pieces_.size() + 1;
  auto [first, second] = exchange_pieces(count * sizeof(std::uint64_t), [&](auto bucket, auto& out) {
    for (std::size_t part = 0; part < count; ++part) {
      const auto digest = serialization::xxh3(piece(bucket, part));
      const auto bytes = std::as_bytes(std::span{&digest, 1});
      out.insert(out.end(), bytes.begin(), bytes.end());
    }
  });
  if (first != second)
    report_difference(first, second, frameworks);
  ++checked_;
  checked_elsewhere_ += check_->owner == check_->other ? 0 : 1;
}

void redundant_checker::report_difference(const std::vector<std::byte>& first, const std::vector<std::byte>& second,
                                          const std::string& frameworks) {
  const auto mine = as_numbers<std::uint64_t>(first);
  const auto theirs = as_numbers<std::uint64_t>(second);
  std::vector<std::string> names;
  auto worst = std::optional<std::size_t>{};
  for (std::size_t part = 0; part < mine.size(); ++part) {
    if (mine[part] == theirs[part])
      continue;
    worst = worst.value_or(part);
    names.push_back(part < pieces_.size() ? pieces_[part].name : "the sums of the metrics");
  }
  const auto is_gradient = *worst < pieces_.size();
  const auto bytes = is_gradient ? pieces_[*worst].elements * sizeof(float) : plan_.metrics.size() * sizeof(double);
  const auto [a, b] = exchange_pieces(bytes, [&](auto bucket, auto& out) {
    const auto values = piece(bucket, *worst);
    out.insert(out.end(), values.begin(), values.end());
  });
  const auto apart = is_gradient ? difference_of(as_numbers<float>(a), as_numbers<float>(b))
                                 : difference_of(as_numbers<double>(a), as_numbers<double>(b));
  throw exception{errc::mismatch, describe_disagreement(step_, *check_, names, apart, frameworks)};
}

} // namespace troupe::runtime

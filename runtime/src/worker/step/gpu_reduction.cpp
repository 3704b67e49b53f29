#include "worker/step/gpu_reduction.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace troupe::runtime {

gpu_reduction::gpu_reduction(collectives::device_group& group, const collectives::device_stream& written_on,
                             const collectives::bucket_layout& layout, std::uint32_t shards,
                             std::vector<collectives::byte_range> parts)
    : group_(group),
      stream_(written_on),
      sums_(value_or_throw(collectives::device_leaf_accumulator::make(
          group.where(), layout, shards, [&group](std::uint64_t size_bytes) { return group.allocate(size_bytes); }))),
      result_(value_or_throw(group.make_bucket(layout, std::move(parts)))) {
  for (std::size_t i = 0; i < result_->parts().size(); ++i)
    ready_.push_back(value_or_throw(collectives::device_event::make(group.where())));
}

gpu_reduction::~gpu_reduction() {
  static_cast<void>(stream_.where().synchronize_stream(stream_.handle()));
}

void gpu_reduction::begin(shard_range range) {
  started_ = 0;
  sums_.begin(range);
}

device_span<std::byte> gpu_reduction::next(shard_id shard) {
  return value_or_throw(sums_.next(shard, stream_));
}

void gpu_reduction::start(std::size_t part, const exchange_terms& terms) {
  if (started_ == 0)
    value_or_throw(sums_.close(stream_));
  const auto range = result_->parts()[part];
  value_or_throw(sums_.finish(range, stream_));
  auto& ready = ready_[part];
  if (terms.is_fast) {
    const auto mine = add_up_partials(range);
    value_or_throw(ready.record(stream_));
    is_idle_ = false;
    value_or_throw(group_.all_reduce_fast(sums_.layout(), mine, *result_, ready, terms.divisor, part));
  } else {
    value_or_throw(ready.record(stream_));
    is_idle_ = false;
    value_or_throw(group_.reduce_leaves(sums_.layout(), terms.shards, terms.ownership, sums_.partials(), *result_,
                                        ready, terms.divisor, part));
  }
  ++started_;
}

void gpu_reduction::finish() {
  is_idle_ = true;
  value_or_throw(group_.finish());
}

void gpu_reduction::wait_until_idle() noexcept {
  if (!std::exchange(is_idle_, true))
    static_cast<void>(group_.finish());
}

device_span<const std::byte> gpu_reduction::add_up_partials(collectives::byte_range part) {
  auto partials = sums_.partials();
  const auto& layout = sums_.layout();
  if (partials.size() == 1)
    return {partials[0].data, layout.size_bytes()};
  if (added_.size_bytes() < layout.size_bytes())
    added_ = value_or_throw(group_.allocate(layout.size_bytes()));
  auto& device = *group_.where();
  value_or_throw(device.clear(added_.address() + part.first, part.size_bytes(), stream_.handle()));
  for (std::size_t i = 0; i < layout.segments().size(); ++i) {
    const auto& segment = layout.segments()[i];
    const auto first = std::max<std::uint64_t>(layout.offset_bytes(i), part.first);
    const auto last =
        std::min<std::uint64_t>(layout.offset_bytes(i) + segment.elements * size_of(segment.type), part.last);
    if (first >= last)
      continue;
    for (const auto& partial : partials) {
      const auto operands = std::array<const std::byte*, 2>{added_.address() + first, partial.data + first};
      collectives::device_reduction pass;
      pass.type = segment.type;
      pass.elements = (last - first) / size_of(segment.type);
      pass.operands = operands;
      pass.out = added_.address() + first;
      value_or_throw(device.reduce(pass, stream_.handle()));
    }
  }
  return added_.bytes();
}

} // namespace troupe::runtime

#include "worker/step/step_bucket.hpp"

#include <troupe/collectives/communicator.hpp>

#include <algorithm>

namespace troupe::runtime {

namespace {

/// Parts of a bucket begin on boundaries of so many elements.
constexpr std::uint64_t part_granule_elements = 1024;

bool is_cut(const step_plan& plan) {
  return plan.gradient_elements * sizeof(float) > plan.bucket_bytes;
}

collectives::bucket_layout layout_of(const step_plan& plan) {
  auto elements = plan.gradient_elements;
  if (is_cut(plan))
    elements = (elements + part_granule_elements - 1) / part_granule_elements * part_granule_elements;
  return collectives::bucket_layout{{{dtype::f32, elements}, {dtype::f64, plan.metrics.size()}}};
}

std::vector<collectives::byte_range> parts_of(const step_plan& plan, const collectives::bucket_layout& layout) {
  if (!is_cut(plan))
    return {{0, layout.size_bytes()}};
  auto gradient = collectives::bucket_layout{{layout.segments().front()}};
  auto parts = collectives::cut_bucket(gradient, plan.bucket_bytes);
  if (!plan.metrics.empty())
    parts.push_back({gradient.size_bytes(), layout.size_bytes()});
  return parts;
}

} // namespace

step_bucket::step_bucket(const step_plan& plan)
    : elements_(plan.gradient_elements),
      layout_(layout_of(plan)),
      parts_(parts_of(plan, layout_)),
      gradient_parts_(parts_.size() == 1 || plan.metrics.empty() ? parts_.size() : parts_.size() - 1) {}

std::uint64_t step_bucket::gradient_elements(std::size_t part) const noexcept {
  const auto& range = parts_[part];
  return std::min(range.last / sizeof(float), elements_) - range.first / sizeof(float);
}

} // namespace troupe::runtime

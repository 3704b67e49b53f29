#include "device/tree.hpp"

#include <algorithm>

namespace troupe::collectives {

expected<std::byte*> device_scratch::reserve(std::uint64_t size_bytes) {
  if (blocks_.empty() || blocks_.back().size_bytes() < size_bytes) {
    TROUPE_TRY(auto grown, device_memory::make(where_, std::max<std::uint64_t>(size_bytes, alignment_bytes)));
    blocks_.push_back(std::move(grown));
  }
  return blocks_.back().address();
}

/// `pieces` is the slice as a layout of its own.
expected<void> device_tree::run(const bucket_layout& pieces, std::span<const std::byte* const> operands, std::byte* out,
                                bool is_final, std::uint64_t divisor, stream_handle stream) {
  for (std::size_t i = 0; i < pieces.segments().size(); ++i) {
    const auto at = pieces.offset_bytes(i);
    const auto in_sums = pieces.offset_in_sums(at);
    const std::byte* x[tree_step::max_operands];
    std::ranges::transform(operands, x, [in_sums](const std::byte* operand) { return operand + in_sums; });
    device_reduction pass;
    pass.type = pieces.segments()[i].type;
    pass.elements = (pieces.offset_bytes(i + 1) - at) / size_of(pass.type);
    pass.operands = {x, operands.size()};
    pass.out = out + (is_final ? at : in_sums);
    pass.is_final = is_final;
    pass.divisor = divisor;
    const auto is_there_already = operands.size() == 1 && x[0] == pass.out && divisor == 1;
    if (is_there_already && sum_type(pass.type) == pass.type)
      continue;
    TROUPE_TRY(where_->reduce(pass, stream));
  }
  return {};
}

expected<void> device_tree::reduce(const finish_plan& plan, const bucket_layout& layout, std::uint64_t divisor,
                                   std::span<const std::byte* const> operands, byte_range slice, std::byte* out,
                                   stream_handle stream) {
  if (slice.size_bytes() == 0)
    return {};
  if (planned_operands_ != plan.operands.size() || planned_ != plan.additions) {
    steps_ = plan_tree_steps(plan);
    planned_operands_ = plan.operands.size();
    planned_ = plan.additions;
  }
  const auto pieces = layout.part(slice);
  const auto sum_bytes = pieces.offset_in_sums(pieces.size_bytes());
  // All steps but the last leave an intermediate sum.
  auto room = std::uint64_t{0};
  if (steps_.size() > 1)
    room = sum_bytes * (steps_.size() - 1);
  TROUPE_TRY(auto scratch, scratch_.reserve(room));
  auto* free = scratch;
  at_.assign(operands.begin(), operands.end());
  for (const auto& step : steps_) {
    const std::byte* x[tree_step::max_operands];
    std::transform(step.operands, step.operands + step.count, x, [this](auto i) { return at_[i]; });
    const auto is_final = step.output != tree_step::none;
    auto* target = is_final ? out : std::exchange(free, free + sum_bytes);
    TROUPE_TRY(run(pieces, {x, step.count}, target, is_final, divisor, stream));
    at_[step.operands[0]] = target;
  }
  // There is only one partial sum.
  if (steps_.empty())
    return run(pieces, {at_.data(), 1}, out, true, divisor, stream);
  return {};
}

expected<void> device_tree::finish(const bucket_layout& layout, std::uint64_t divisor, const std::byte* sum,
                                   byte_range slice, std::byte* out, stream_handle stream) {
  return run(layout.part(slice), {&sum, 1}, out, true, divisor, stream);
}

expected<void> device_tree::widen(const bucket_layout& layout, const std::byte* in, byte_range slice, std::byte* out,
                                  stream_handle stream) {
  const auto pieces = layout.part(slice);
  for (std::size_t i = 0; i < pieces.segments().size(); ++i) {
    const auto at = pieces.offset_bytes(i);
    const auto type = pieces.segments()[i].type;
    const auto elements = (pieces.offset_bytes(i + 1) - at) / size_of(type);
    TROUPE_TRY(where_->widen(type, out + pieces.offset_in_sums(at), in + at, elements, stream));
  }
  return {};
}

} // namespace troupe::collectives

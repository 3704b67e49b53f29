#include "tree/tree_reduction.hpp"

#include <algorithm>
#include <cstring>

namespace troupe::collectives {

namespace {

/// Applies to sums: two operands and a result of this size fit into the L1 cache.
constexpr std::uint64_t block_bytes = 8192;

bool is_narrow(const tree_reduction& what) noexcept {
  return what.sums.size_bytes() != what.layout.size_bytes();
}

} // namespace

/// Combines additions into steps as far as their trees are balanced.
std::vector<tree_step> plan_tree_steps(const finish_plan& plan) {
  std::vector<tree_step> steps;
  // By operand: additions to it that are in no step yet.
  std::vector<tree_step> open;
  for (std::uint32_t i = 0; i < plan.operands.size(); ++i)
    open.push_back({{i}, 1, tree_step::none});
  const auto close = [&](std::uint32_t operand, std::uint32_t output) {
    auto& x = open[operand];
    x.output = output;
    if (x.count > 1)
      steps.push_back(x);
    x = {{operand}, 1, tree_step::none};
  };
  for (const auto& [target, source] : plan.additions) {
    auto& left = open[target];
    const auto& right = open[source];
    if (left.count != right.count || left.count == tree_step::max_operands) {
      close(target, tree_step::none);
      close(source, tree_step::none);
    }
    std::copy_n(right.operands, right.count, left.operands + left.count);
    left.count += right.count;
  }
  for (std::uint32_t k = 0; k < plan.outputs.size(); ++k)
    close(plan.outputs[k].operand, k);
  return steps;
}

/// Usually the plan of the last call.
void slice_reducer::plan_steps(const finish_plan& plan) {
  if (planned_operands_ == plan.operands.size() && planned_.additions == plan.additions &&
      planned_.outputs == plan.outputs)
    return;
  planned_operands_ = plan.operands.size();
  planned_.additions = plan.additions;
  planned_.outputs = plan.outputs;
  steps_ = plan_tree_steps(plan);
}

void slice_reducer::run(const tree_reduction& what, std::span<const std::byte* const> operands, std::uint64_t origin,
                        byte_range slice, std::span<std::byte* const> outs) {
  plan_steps(what.plan);
  const auto in_sums = [&what, narrow = is_narrow(what)](std::uint64_t offset) {
    return narrow ? what.layout.offset_in_sums(offset) : offset;
  };
  const auto are_wide = what.operands == operand_kind::sums || !is_narrow(what);
  const auto is_wide_out = what.root == root_kind::partial_sum || !is_narrow(what);
  const auto stride = is_narrow(what) ? block_bytes / 2 : block_bytes;
  const auto blocks = (slice.size_bytes() + stride - 1) / stride;
  const auto lanes = lanes_for(blocks * operands.size());
  lanes_.resize(std::max(lanes, lanes_.size()));
  const auto run_share = [&](std::size_t i) {
    auto& mine = lanes_[i];
    mine.at.resize(operands.size());
    mine.outs.resize(outs.size());
    mine.scratch.reserve(block_bytes * operands.size());
    const auto end = std::min(slice.first + blocks * (i + 1) / lanes * stride, slice.last);
    for (auto first = slice.first + blocks * i / lanes * stride; first < end; first += stride) {
      const auto at = are_wide ? in_sums(first) - in_sums(origin) : first - origin;
      const auto out_at = is_wide_out ? in_sums(first) - in_sums(slice.first) : first - slice.first;
      std::ranges::transform(operands, mine.at.begin(), [at](const std::byte* x) { return x + at; });
      std::ranges::transform(outs, mine.outs.begin(), [out_at](std::byte* x) { return x + out_at; });
      run_block(mine, what, {first, std::min(first + stride, slice.last)});
    }
  };
  if (lanes > 1)
    helpers_->run(lanes, run_share);
  else
    run_share(0);
}

/// A thread is worth waking for some hundred microseconds of work.
std::size_t slice_reducer::lanes_for(std::uint64_t blocks) const noexcept {
  constexpr std::uint64_t least_blocks = (1 << 19) / block_bytes;
  if (helpers_ == nullptr)
    return 1;
  return std::clamp<std::uint64_t>(blocks / least_blocks, 1, helpers_->size() + 1);
}

void slice_reducer::run_block(lane& mine, const tree_reduction& what, byte_range block) const {
  const auto in_sums = is_narrow(what)
                           ? byte_range{what.layout.offset_in_sums(block.first), what.layout.offset_in_sums(block.last)}
                           : block;
  const auto scratch = [&mine](std::size_t i) { return mine.scratch.data() + i * block_bytes; };
  if (what.operands == operand_kind::contributions && is_narrow(what))
    for (std::size_t i = 0; i < mine.at.size(); ++i) {
      widen(what.layout, block, scratch(i), mine.at[i]);
      mine.at[i] = scratch(i);
    }
  // Written straight to its place if it needs no further step.
  const auto is_stored_as_is = !is_narrow(what) || what.root == root_kind::partial_sum;
  for (const auto& x : steps_) {
    const std::byte* operands[tree_step::max_operands];
    std::transform(x.operands, x.operands + x.count, operands, [&mine](auto i) { return mine.at[i]; });
    auto* target = x.output != tree_step::none && is_stored_as_is ? mine.outs[x.output] : scratch(x.operands[0]);
    combine_balanced(what.sums, in_sums, what.op, target, {operands, x.count});
    mine.at[x.operands[0]] = target;
  }
  for (std::size_t k = 0; k < mine.outs.size(); ++k)
    store(mine, what, block, mine.at[what.plan.outputs[k].operand], mine.outs[k]);
}

void slice_reducer::store(lane& mine, const tree_reduction& what, byte_range block, const std::byte* sum,
                          std::byte* out) {
  const auto sum_bytes = what.layout.offset_in_sums(block.last) - what.layout.offset_in_sums(block.first);
  if (what.root == root_kind::partial_sum || !is_narrow(what)) {
    if (sum != out)
      std::memcpy(out, sum, sum_bytes);
    if (what.root == root_kind::final_result && what.divisor != 1)
      divide(what.layout, block, out, what.divisor);
    return;
  }
  if (what.divisor != 1) {
    // The root replaces operand 0: the sum is already in its block, or still where the operand is.
    auto* divided = mine.scratch.data();
    if (sum != divided)
      std::memcpy(divided, sum, sum_bytes);
    divide(what.layout, block, divided, what.divisor);
    sum = divided;
  }
  narrow(what.layout, block, out, sum);
}

} // namespace troupe::collectives

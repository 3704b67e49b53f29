#pragma once

#include "transport/helper_threads.hpp"

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/collectives/bucket_layout.hpp>
#include <troupe/collectives/reduction.hpp>
#include <troupe/collectives/summation_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace troupe::collectives {

/// What the operands of a reduction are: elements of the layout itself, or sums over them.
enum class operand_kind : std::uint8_t { contributions, sums };

/// What is done with a finished sum.
enum class root_kind : std::uint8_t {
  /// It is divided, and rounded to the layout's own types.
  final_result,
  /// It stays as it is: more is to be added elsewhere.
  partial_sum,
};

/// A reduction along a plan, where all operands can be read in place.
struct tree_reduction {
  const finish_plan& plan;
  const bucket_layout& layout;
  /// `layout.sums()`.
  const bucket_layout& sums;
  reduce_op op = reduce_op::sum;
  std::uint64_t divisor = 1;
  operand_kind operands = operand_kind::sums;
  root_kind root = root_kind::final_result;
};

/// Additions of a plan that are done in one pass: a balanced tree over 2, 4 or 8 operands, whose sum takes the place of
/// the first.
struct tree_step {
  static constexpr std::uint32_t max_operands = 8;
  static constexpr std::uint32_t none = UINT32_MAX;

  std::uint32_t operands[max_operands] = {};
  std::uint32_t count = 0;
  /// The output that this step completes, or `none`.
  std::uint32_t output = none;
};

/// The additions of a plan as steps, in an order in which they can be done. Outputs that are operands as they came have
/// none.
[[nodiscard]] std::vector<tree_step> plan_tree_steps(const finish_plan& plan);

/// Reduces one slice (of `layout`, on element boundaries) after the other in blocks that stay in the cache.
class slice_reducer {
 public:
  /// From now on the blocks of a large slice are dealt among the calling thread and `count` more.
  void take_helpers(std::size_t count) { helpers_ = std::make_unique<helper_threads>(count); }

  /// `operands`, in the plan's order, begin at the element at `origin` of the bucket; `outs`, one for each output, at
  /// the slice's first element. An out may be where an operand has the same elements; else nothing overlaps.
  void run(const tree_reduction& what, std::span<const std::byte* const> operands, std::uint64_t origin,
           byte_range slice, std::span<std::byte* const> outs);

 private:
  /// What a thread needs for itself.
  struct lane {
    /// Where the block of each operand is, or what it has become; and of each output.
    std::vector<const std::byte*> at;
    std::vector<std::byte*> outs;
    aligned_buffer scratch;
  };

  void plan_steps(const finish_plan& plan);
  [[nodiscard]] std::size_t lanes_for(std::uint64_t blocks) const noexcept;
  void run_block(lane& mine, const tree_reduction& what, byte_range block) const;
  static void store(lane& mine, const tree_reduction& what, byte_range block, const std::byte* sum, std::byte* out);

  /// What `steps_` were made of, without the names of operands.
  std::size_t planned_operands_ = 0;
  finish_plan planned_;
  std::vector<tree_step> steps_;
  std::vector<lane> lanes_;
  std::unique_ptr<helper_threads> helpers_;
};

} // namespace troupe::collectives

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

/// The operands of a reduction: elements of the layout itself, or sums over them.
enum class operand_kind : std::uint8_t { contributions, sums };

/// What happens to a finished sum.
enum class root_kind : std::uint8_t {
  /// It is divided and rounded to the layout's own types.
  final_result,
  /// It stays as it is: further additions happen elsewhere.
  partial_sum,
};

/// A reduction along a plan whose operands can all be read in place.
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

/// Additions of a plan that run in one pass: a balanced tree over 2, 4 or 8 operands, whose sum replaces the first.
struct tree_step {
  static constexpr std::uint32_t max_operands = 8;
  static constexpr std::uint32_t none = UINT32_MAX;

  std::uint32_t operands[max_operands] = {};
  std::uint32_t count = 0;
  /// The output that this step completes, or `none`.
  std::uint32_t output = none;
};

/// The additions of a plan as steps, in a valid order. Outputs that are unchanged operands have no step.
[[nodiscard]] std::vector<tree_step> plan_tree_steps(const finish_plan& plan);

/// Reduces one slice after another (of `layout`, on element boundaries) in blocks that stay in the cache.
class slice_reducer {
 public:
  /// From now on the blocks of a large slice are shared between the calling thread and `count` more.
  void take_helpers(std::size_t count) { helpers_ = std::make_unique<helper_threads>(count); }

  /// `operands`, in the plan's order, start at the element at `origin` of the bucket; `outs`, one per output, at the
  /// slice's first element. An out may overlap an operand at the same elements; otherwise nothing overlaps.
  void run(const tree_reduction& what, std::span<const std::byte* const> operands, std::uint64_t origin,
           byte_range slice, std::span<std::byte* const> outs);

 private:
  /// The data of one thread.
  struct lane {
    /// The current location of each operand's block, original or summed, and of each output's.
    std::vector<const std::byte*> at;
    std::vector<std::byte*> outs;
    aligned_buffer scratch;
  };

  void plan_steps(const finish_plan& plan);
  [[nodiscard]] std::size_t lanes_for(std::uint64_t blocks) const noexcept;
  void run_block(lane& mine, const tree_reduction& what, byte_range block) const;
  static void store(lane& mine, const tree_reduction& what, byte_range block, const std::byte* sum, std::byte* out);

  /// The number of operands and the plan, without operands, from which `steps_` were made.
  std::size_t planned_operands_ = 0;
  finish_plan planned_;
  std::vector<tree_step> steps_;
  std::vector<lane> lanes_;
  std::unique_ptr<helper_threads> helpers_;
};

} // namespace troupe::collectives

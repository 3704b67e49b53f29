#pragma once

#include "shm/bucket.hpp"
#include "shm/group.hpp"
#include "tree/tree_reduction.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace troupe::collectives {

/// Reductions among the ranks of one host: every rank finishes its slice directly from its peers' memory. One thread
/// makes the calls, between the group's `begin` and `end`, and all ranks make the same ones.
class shm_reducer {
 public:
  explicit shm_reducer(std::shared_ptr<shm_group> group);

  /// How a part of a bucket is divided among the ranks: a slice for each, or everything for every rank if that is
  /// cheaper than waiting for the others' slices.
  [[nodiscard]] std::vector<byte_range> spread(byte_range part) const;

  /// Reduces a part into `results[k]` for output k of the plan; all results have equal slices. `mine` points to the
  /// start of this rank's operands, which are whole buckets. The caller sets the posting's `words`.
  [[nodiscard]] expected<void> reduce(const call_record& call, const tree_reduction& what,
                                      std::span<const std::byte* const> mine, std::size_t part,
                                      std::span<shm_bucket* const> results);

  /// The first half of a reduction whose sums stay with the ranks that make them: makes the operands of a part
  /// readable, and waits for those of all ranks. The caller sets the posting's `words`.
  [[nodiscard]] expected<void> gather(const call_record& call, const tree_reduction& what,
                                      std::span<const std::byte* const> mine, byte_range part);
  /// The second half: adds the operands' elements of `slice`, within the part gathered last. `outs`, one for each
  /// output of the plan, start there. Any number of times, until the call's next rendezvous.
  void add(const tree_reduction& what, byte_range part, byte_range slice, std::span<std::byte* const> outs) {
    run(what, part.first, slice, outs);
  }

  /// Reduces one contribution per rank in place. The data need not be in a pool.
  [[nodiscard]] expected<void> all_reduce(const call_record& call, const tree_reduction& what,
                                          std::span<std::byte> data);

  /// The number of bytes that this rank has read from its peers' memory.
  [[nodiscard]] std::uint64_t read_bytes() const noexcept { return read_bytes_; }

 private:
  [[nodiscard]] bool fits_slot(const tree_reduction& what, byte_range part) const noexcept;
  [[nodiscard]] std::uint64_t operand_bytes(const tree_reduction& what, byte_range part) const noexcept;
  [[nodiscard]] const std::byte* begin_of(const tree_reduction& what, const std::byte* operand,
                                          byte_range part) const noexcept;

  expected<void> gather_small(const call_record& call, const tree_reduction& what,
                              std::span<const std::byte* const> mine, byte_range part);
  expected<void> gather_large(const call_record& call, const tree_reduction& what,
                              std::span<const std::byte* const> mine, byte_range part);
  expected<void> offer(const tree_reduction& what, std::span<const std::byte* const> mine, byte_range part);
  void look_at_operands(const tree_reduction& what);
  expected<void> all_reduce_in_place(const tree_reduction& what, std::span<std::byte> data);
  expected<void> all_reduce_staged(const call_record& call, const tree_reduction& what, std::span<std::byte> data);
  expected<std::byte*> reserve(std::byte*& block, std::uint64_t& room, std::uint64_t size_bytes);
  void run(const tree_reduction& what, std::uint64_t origin, byte_range slice, std::span<std::byte* const> outs);

  std::shared_ptr<shm_group> group_;
  slice_reducer slices_;
  /// The start of the part in each of the plan's operands.
  std::vector<const std::byte*> operands_;
  std::vector<std::byte*> outs_;
  std::uint64_t read_bytes_ = 0;

  /// Copies of operands that the peers cannot read in place.
  std::byte* copies_ = nullptr;
  std::uint64_t copies_room_ = 0;
  /// For data outside the pools: two halves for input, two for output.
  std::byte* staged_ = nullptr;
  std::uint64_t staged_room_ = 0;
};

} // namespace troupe::collectives

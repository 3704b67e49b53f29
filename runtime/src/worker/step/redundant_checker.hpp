#pragma once

#include "worker/group/worker_group.hpp"
#include "worker/step/gradient_exchange.hpp"
#include "worker/step/redundant_check.hpp"

#include <troupe/collectives/aligned_buffer.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe::runtime {

/// Has one shard of a step computed twice, on different ranks where there are several, and compares the two results bit
/// by bit (`run_config::verify_determinism`). Used by the training thread. Throws `exception`.
class redundant_checker {
 public:
  /// `every` 0: never. The references outlive this object.
  redundant_checker(std::uint64_t every, const loop_plan& plan, const step_bucket& bucket, worker_group& group)
      : every_(every), plan_(plan), bucket_(bucket), group_(group) {}

  /// A try of a step begins.
  void begin(step_id step, std::uint32_t shards, std::span<const shard_range> ownership, rank_id mine);
  /// A joiner repeats a step: nothing is compared.
  void begin_without_check() { check_.reset(); }
  /// Whether this step is checked, by any rank.
  [[nodiscard]] bool is_due() const noexcept { return check_.has_value(); }
  /// The shard that this rank computes only to be compared, after its own.
  [[nodiscard]] std::optional<shard_id> again() const noexcept;
  /// Whether it has.
  [[nodiscard]] bool has_computed_again() const noexcept { return second_bucket_.has_value(); }

  /// The bucket of this shard's contribution is open.
  void on_open(shard_id shard, bucket_memory bucket);
  /// Before any other contribution is added to the last one: keeps the owner's result.
  void keep_first(gradient_exchange& exchange);
  /// A zeroed bucket for the second result.
  [[nodiscard]] bucket_memory open_again();

  /// Every rank compares what the two found. Throws `errc::mismatch`, naming the tensors that differ. `names` are the
  /// gradient's tensors; `frameworks` says what their arithmetic depends on.
  void compare(gradient_exchange& exchange, const std::vector<gradient_tensor>& names, const std::string& frameworks);

  /// How many shards were computed twice with equal bits, and how many of them by another rank.
  [[nodiscard]] std::uint64_t checked() const noexcept { return checked_; }
  [[nodiscard]] std::uint64_t checked_elsewhere() const noexcept { return checked_elsewhere_; }

 private:
  using taker = std::function<void(std::span<const std::byte>, std::vector<std::byte>&)>;

  [[nodiscard]] std::span<const std::byte> piece(std::span<const std::byte> bucket, std::size_t part) const;
  [[nodiscard]] std::vector<std::byte> take_both(const taker& take) const;
  /// The messages of the owner and the other rank, `bytes` from each.
  [[nodiscard]] std::pair<std::vector<std::byte>, std::vector<std::byte>> exchange_pieces(std::size_t bytes,
                                                                                          const taker& take);
  [[noreturn]] void report_difference(const std::vector<std::byte>& first, const std::vector<std::byte>& second,
                                      const std::string& frameworks);

  std::uint64_t every_;
  const loop_plan& plan_;
  const step_bucket& bucket_;
  worker_group& group_;
  std::optional<redundant_check> check_;
  rank_id mine_;
  step_id step_;
  /// The owner's contribution while it is written, and then as a copy.
  std::optional<bucket_memory> open_;
  collectives::aligned_buffer first_{*std::pmr::new_delete_resource()};
  /// Where the second result is written: in `second_`, or in `second_on_device_` and copied at the end.
  std::optional<bucket_memory> second_bucket_;
  collectives::aligned_buffer second_{*std::pmr::new_delete_resource()};
  collectives::device_memory second_on_device_;
  std::vector<gradient_tensor> pieces_;
  std::uint64_t checked_ = 0;
  std::uint64_t checked_elsewhere_ = 0;
};

} // namespace troupe::runtime

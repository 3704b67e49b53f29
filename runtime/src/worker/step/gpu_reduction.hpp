#pragma once

#include "worker/step/gradient_exchange.hpp"

#include <troupe/collectives/bucket_layout.hpp>
#include <troupe/collectives/device.hpp>
#include <troupe/collectives/device_group.hpp>
#include <troupe/device_span.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace troupe::runtime {

/// The reduction of a step's gradient in the memory of a worker's GPU, for one generation: the contributions of its
/// shards, written by work on one stream; the sums of all, on the group's. Throws `exception` with the errors of the
/// group and the device. All on the training thread.
class gpu_reduction {
 public:
  /// `group` outlives every call but those of `result`, `group` and `is_idle`, and the destructor.
  gpu_reduction(collectives::device_group& group, const collectives::device_stream& written_on,
                const collectives::bucket_layout& layout, std::uint32_t shards,
                std::vector<collectives::byte_range> parts);
  /// Waits for the work on the stream, which may still read what was reduced.
  ~gpu_reduction();
  gpu_reduction(const gpu_reduction&) = delete;
  gpu_reduction& operator=(const gpu_reduction&) = delete;

  [[nodiscard]] std::span<const collectives::byte_range> parts() const noexcept { return result_->parts(); }

  /// Only to be compared, if it may be gone.
  [[nodiscard]] const collectives::device_group& group() const noexcept { return group_; }

  void begin(shard_range range);
  /// The bucket for this shard's contribution; zero, once the stream comes there.
  [[nodiscard]] device_span<std::byte> next(shard_id shard);

  /// Begins the reduction of a part: work on the stream writes its contributions. All ranks begin all parts of a step,
  /// in the same order. Returns at once.
  void start(std::size_t part, const exchange_terms& terms);
  /// How many parts have been begun since `begin`.
  [[nodiscard]] std::size_t started() const noexcept { return started_; }

  /// Returns once all started parts are reduced and no reduction writes any more.
  void finish();
  /// The same, also after a failure.
  void wait_until_idle() noexcept;
  /// Whether nothing is under way.
  [[nodiscard]] bool is_idle() const noexcept { return is_idle_; }

  /// The reduced bucket; until the next step's first part is begun.
  [[nodiscard]] device_span<const std::byte> result() const noexcept { return result_->bytes(); }

 private:
  [[nodiscard]] device_span<const std::byte> add_up_partials(collectives::byte_range part);

  collectives::device_group& group_;
  const collectives::device_stream& stream_;
  collectives::device_leaf_accumulator sums_;
  std::unique_ptr<collectives::device_bucket> result_;
  /// By part: its contributions are written.
  std::vector<collectives::device_event> ready_;
  std::size_t started_ = 0;
  bool is_idle_ = true;
  /// The sum of this rank's shards, where the order does not matter.
  collectives::device_memory added_;
};

} // namespace troupe::runtime

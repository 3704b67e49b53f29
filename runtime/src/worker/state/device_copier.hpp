#pragma once

#include <troupe/collectives/device.hpp>
#include <troupe/device_span.hpp>
#include <troupe/error.hpp>
#include <troupe/tensor_memory.hpp>

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>

namespace troupe::runtime {

/// The way of a worker's tracked tensors between its GPU and host memory: on a stream of its own, which follows the one
/// on which the training function works, and through pinned memory. Used from the training thread, but for `prepare`.
class device_copier : public std::enable_shared_from_this<device_copier> {
 public:
  /// Work on `written_on` comes before every copy; that stream must outlive the copier's last copy.
  [[nodiscard]] static expected<std::shared_ptr<device_copier>> open(const std::shared_ptr<collectives::device>& where,
                                                                     collectives::stream_handle written_on);

  /// The way to these addresses of the GPU, for `tracked_state`. The memory is the caller's.
  [[nodiscard]] std::shared_ptr<tensor_memory> tensor(device_span<std::byte> memory);

  /// Returns once `target` holds the first bytes of `from`, as many as fit.
  [[nodiscard]] expected<void> read(device_span<const std::byte> from, std::span<std::byte> target);
  /// Returns once the GPU has the bytes.
  [[nodiscard]] expected<void> write(device_span<std::byte> to, std::span<const std::byte> source);
  /// Pins host memory for as long as the result lives; null where the driver will not.
  [[nodiscard]] std::shared_ptr<const void> prepare(std::span<std::byte> memory);

 private:
  /// Bytes are on their way in one half while those in the other are copied on.
  struct half {
    collectives::pinned_memory memory;
    collectives::device_event done;
  };

  device_copier() = default;
  [[nodiscard]] expected<void> follow();
  [[nodiscard]] bool is_prepared(std::span<const std::byte> memory);

  std::shared_ptr<collectives::device> where_;
  collectives::stream_handle written_on_ = nullptr;
  collectives::device_stream stream_;
  collectives::device_event written_;
  std::array<half, 2> halves_;
  std::mutex mutex_;
  /// Host memory that is pinned, by its begin.
  std::map<const std::byte*, std::size_t> prepared_;
};

} // namespace troupe::runtime

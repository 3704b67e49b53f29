#pragma once

#include <troupe/data/images.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::data {

/// Where encoded images come from. Constant and thread-safe.
class image_source {
 public:
  image_source() = default;
  image_source(const image_source&) = delete;
  image_source& operator=(const image_source&) = delete;
  virtual ~image_source() = default;

  [[nodiscard]] virtual std::uint64_t size() const noexcept = 0;

  /// For messages.
  [[nodiscard]] virtual std::string name(std::uint64_t sample) const = 0;

  /// What identifies the sample, wherever the source is stored.
  [[nodiscard]] virtual std::string key(std::uint64_t sample) const = 0;

  [[nodiscard]] virtual std::uint64_t size_bytes(std::uint64_t sample) const noexcept = 0;

  /// None for any sample, or one for each.
  [[nodiscard]] virtual std::optional<std::int64_t> label(std::uint64_t sample) const noexcept = 0;

  /// The encoded image: in `buffer`, or where the source has it. Valid until the buffer changes. Fails with the
  /// sample's name in the message.
  [[nodiscard]] virtual expected<std::span<const std::byte>> read(std::uint64_t sample,
                                                                  std::vector<std::byte>& buffer) const = 0;

  /// What is not part of the data set.
  [[nodiscard]] virtual std::uint64_t ignored() const noexcept = 0;
};

/// Fails with `errc::invalid_argument` for options out of range.
[[nodiscard]] expected<void> check(const image_options& options);

/// The data set of a source with at least one sample. `categories` describe its labels; null for numbers. Reads all of
/// it with `image_fingerprint::content`, and fails as that does.
[[nodiscard]] expected<image_set_ptr> make_image_set(std::unique_ptr<const image_source> source,
                                                     const image_options& options, category_names categories);

} // namespace troupe::data

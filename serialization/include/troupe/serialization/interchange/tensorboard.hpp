#pragma once

#include <troupe/metrics.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

/// The records of TensorBoard's event files. A file is a sequence of records, framed as TensorFlow's
/// (tensorflow/core/lib/io/record_writer.h), each of which is a protobuf `Event`
/// (tensorboard/compat/proto/event.proto, summary.proto). Pure.
namespace troupe::serialization {

/// When something was recorded.
using wall_time = std::chrono::system_clock::time_point;

/// The record with which a file begins.
[[nodiscard]] std::string tensorboard_version_record(wall_time when);

/// A writer begins, whose first step is `step`: what earlier records say of this step and later ones is void
/// (SessionLog.START).
[[nodiscard]] std::string tensorboard_start_record(wall_time when, std::uint64_t step);

/// Scalars of a step, as 32-bit floats. What is no UTF-8 in a name is replaced.
[[nodiscard]] std::string tensorboard_scalars_record(wall_time when, std::uint64_t step, const metric_map& values);

/// CRC-32C (Castagnoli), as in RFC 3720, appendix B.4.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> data) noexcept;

} // namespace troupe::serialization

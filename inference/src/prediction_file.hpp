#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/existing_file.hpp>

#include <cstdint>
#include <filesystem>

namespace troupe::inference {

/// The tensor of a run's state that holds its predictions: f32 [rows, outputs].
inline constexpr const char* predictions_tensor = "predictions";
/// Where the state's values hold the outputs' names.
inline constexpr const char* outputs_value = "outputs";

enum class prediction_format : std::uint8_t { npy, csv };

/// By the name's end. Fails with `errc::invalid_argument` for any other.
[[nodiscard]] expected<prediction_format> format_of(const std::filesystem::path& path);

/// Writes the predictions that a checkpoint holds, whole or not at all, and returns once they are on the device.
/// Returns the number of rows. Fails with `errc::not_found` where the checkpoint has none, `errc::already_exists`,
/// `errc::damaged` or `errc::io_error`.
[[nodiscard]] expected<std::uint64_t> write_predictions(const serialization::checkpoint& source,
                                                        const std::filesystem::path& path,
                                                        serialization::existing_file existing);

} // namespace troupe::inference

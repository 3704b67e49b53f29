#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/existing_file.hpp>

#include <cstdint>
#include <filesystem>

namespace troupe::inference {

/// The tensor of a run's state that holds the predictions: f32 [rows, outputs].
inline constexpr const char* predictions_tensor = "predictions";
/// The key of the outputs' names in the state's values.
inline constexpr const char* outputs_value = "outputs";

enum class prediction_format : std::uint8_t { npy, csv };

/// Chosen by the extension. Fails with `errc::invalid_argument` for an unknown one.
[[nodiscard]] expected<prediction_format> format_of(const std::filesystem::path& path);

/// Writes a checkpoint's predictions atomically, and returns the number of rows once they are on the device. Fails with
/// `errc::not_found` if the checkpoint has none, `errc::already_exists`, `errc::damaged` or `errc::io_error`.
[[nodiscard]] expected<std::uint64_t> write_predictions(const serialization::checkpoint& source,
                                                        const std::filesystem::path& path,
                                                        serialization::existing_file existing);

} // namespace troupe::inference

#pragma once

#include "decisions/input_table.hpp"

#include <troupe/data/column.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// The bodies of requests and responses: untrusted JSON and NPY to rows, predictions to JSON and NPY.
namespace troupe::serving {

/// The rows of one request.
struct row_values {
  std::uint64_t rows = 0;
  /// The values of each input, row after row.
  std::vector<std::vector<std::byte>> columns;
};

/// Whether requests can be read into columns like these. Fails with `errc::invalid_argument` for no columns, for one
/// without elements, and for floats of 16 bits.
[[nodiscard]] expected<void> check_inputs(std::span<const data::column_spec> inputs);

/// Reads `{"inputs": [ROW, ...]}`. A row is an object with a value for each input; or an array of values, in the order
/// of the inputs; or, with one input, its value. A value is a number, or an array of all numbers, flat or nested as the
/// input's shape is. A text is a category, null a missing number or category. Fails with `errc::invalid_argument`,
/// naming row and input, and with `errc::unsatisfiable` for more than `max_rows` rows. Needs memory for the columns
/// only. Pure.
[[nodiscard]] expected<row_values> parse_json_rows(std::string_view body, const input_table& inputs,
                                                   std::uint64_t max_rows);

/// Reads an NPY file whose first dimension is the rows: the numbers of a row are those of all inputs, in order. Numbers
/// are converted to the inputs' types if they fit. Fails as `parse_json_rows` does. Pure.
[[nodiscard]] expected<row_values> parse_npy_rows(std::string_view body, const input_table& inputs,
                                                  std::uint64_t max_rows);

/// The most bytes that the columns of a body's rows can take.
[[nodiscard]] std::uint64_t most_column_bytes(std::string_view body, const input_table& inputs, std::uint64_t max_rows);

/// The most rows that JSON of so many bytes can have, one that is not complete included.
[[nodiscard]] std::uint64_t most_json_rows(std::uint64_t body_bytes, const input_table& inputs, std::uint64_t max_rows);

/// Whether a body begins as NPY files do.
[[nodiscard]] bool is_npy(std::string_view body) noexcept;

/// The model that has made a prediction.
struct model_label {
  std::string name;
  std::uint64_t step = 0;
};

/// `{"model": {"name": ..., "step": ...}, "outputs": [[...], ...]}`, with the shortest digits that read back as the
/// same f32; NaN and infinities, which JSON lacks, are null. `width` is the numbers of a row, at least 1.
[[nodiscard]] std::string json_of_outputs(const model_label& model, std::span<const float> outputs, std::size_t width);

/// The most bytes that either text needs for a number.
inline constexpr std::uint64_t most_output_bytes = 17;

/// An NPY file, f32 [rows, width].
[[nodiscard]] std::string npy_of_outputs(std::span<const float> outputs, std::size_t width);

} // namespace troupe::serving

#include "decisions/rows.hpp"

#include "decisions/number_writer.hpp"

#include <troupe/serialization/interchange/npy.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::serving {

namespace {

template <class Stored, class Number>
bool append_all(std::vector<std::byte>& target, dtype type, const std::byte* from, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    if (!append_number(target, type, static_cast<Number>(value))) // NOLINT(bugprone-signed-char-misuse)
      return false;
  }
  return true;
}

/// Appends `count` numbers of another type.
bool append_converted(std::vector<std::byte>& target, dtype to, const std::byte* from, dtype type,
                      std::uint64_t count) {
  switch (type) {
  case dtype::f32:
    return append_all<float, double>(target, to, from, count);
  case dtype::f64:
    return append_all<double, double>(target, to, from, count);
  case dtype::i8:
    return append_all<std::int8_t, std::int64_t>(target, to, from, count);
  case dtype::i16:
    return append_all<std::int16_t, std::int64_t>(target, to, from, count);
  case dtype::i32:
    return append_all<std::int32_t, std::int64_t>(target, to, from, count);
  case dtype::i64:
    return append_all<std::int64_t, std::int64_t>(target, to, from, count);
  case dtype::boolean:
  case dtype::u8:
    return append_all<std::uint8_t, std::uint64_t>(target, to, from, count);
  case dtype::u16:
    return append_all<std::uint16_t, std::uint64_t>(target, to, from, count);
  case dtype::u32:
    return append_all<std::uint32_t, std::uint64_t>(target, to, from, count);
  case dtype::u64:
    return append_all<std::uint64_t, std::uint64_t>(target, to, from, count);
  case dtype::f16:
  case dtype::bf16:
    return false;
  }
  return false;
}

/// Whether the last `count` values of a column are ones that it can have.
bool are_valid(const data::column_spec& column, std::span<const std::byte> values) {
  if (column.type == dtype::boolean)
    return std::ranges::all_of(values, [](auto each) { return each <= std::byte{1}; });
  for (std::size_t i = 0; column.categories != nullptr && i < values.size(); i += sizeof(std::int64_t)) {
    std::int64_t code = 0;
    std::memcpy(&code, values.data() + i, sizeof code);
    if (code < -1 || code >= std::ssize(*column.categories))
      return false;
  }
  return true;
}

/// Appends `count` numbers; false if the column does not have such.
bool append_values(std::vector<std::byte>& target, const data::column_spec& column, const std::byte* from, dtype type,
                   std::uint64_t count) {
  if (type == column.type)
    target.insert(target.end(), from, from + count * size_of(type));
  else if (!append_converted(target, column.type, from, type, count))
    return false;
  return are_valid(column, std::span{target}.last(column.size_bytes()));
}

void append_number_text(std::string& target, float value) {
  if (!std::isfinite(value)) {
    target += "null";
    return;
  }
  std::array<char, 32> digits{};
  const auto* end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  const auto text = std::string_view{digits.data(), static_cast<std::size_t>(end - digits.data())};
  target += text;
  // Readers take digits alone for an integer, whose zero has no sign.
  if (text.find_first_of(".e") == std::string_view::npos)
    target += ".0";
}

} // namespace

expected<void> check_inputs(std::span<const data::column_spec> inputs) {
  if (inputs.empty())
    return fail(errc::invalid_argument, "the model has no inputs");
  for (const auto& each : inputs)
    if (each.elements() == 0 || each.type == dtype::f16 || each.type == dtype::bf16)
      return fail(errc::invalid_argument, fmt::format("input '{}' of the model is {}: inputs need elements of a type "
                                                      "that JSON has, and not floats of 16 bits",
                                                      each.name, data::describe(each)));
  return {};
}

std::uint64_t most_json_rows(std::uint64_t body_bytes, const input_table& inputs, std::uint64_t max_rows) {
  // A number takes two characters at least, with what stands between it and the next.
  return std::min(max_rows, body_bytes / 2 / inputs.row_elements() + 1);
}

std::uint64_t most_column_bytes(std::string_view body, const input_table& inputs, std::uint64_t max_rows) {
  // A number of an NPY file takes one byte at least.
  const auto rows = is_npy(body) ? std::min(max_rows, body.size() / inputs.row_elements() + 1)
                                 : most_json_rows(body.size(), inputs, max_rows);
  return rows * inputs.row_bytes();
}

expected<row_values> parse_npy_rows(std::string_view body, const input_table& table, std::uint64_t max_rows) {
  const auto inputs = table.columns();
  const auto bytes = std::as_bytes(std::span{body});
  auto layout = serialization::parse_npy_header(bytes, bytes.size());
  if (!layout)
    return fail(errc::invalid_argument, fmt::format("the NPY body cannot be read: {}", layout.error().message));
  if (layout->shape.empty())
    return fail(errc::invalid_argument, "the NPY body is a scalar: its first dimension must be the rows");
  if (layout->bytes == serialization::byte_order::big ||
      (layout->elements == serialization::element_order::fortran && layout->shape.size() > 1))
    return fail(errc::invalid_argument, "the NPY body is big-endian or in Fortran order: convert the array with "
                                        "numpy.ascontiguousarray, to a little-endian type");
  row_values result;
  result.rows = layout->shape.front();
  if (result.rows > max_rows)
    return fail(errc::unsatisfiable,
                fmt::format("{} rows, and the most of one request is {}: send several", result.rows, max_rows));
  const auto width = table.row_elements();
  std::uint64_t own_width = 1;
  for (auto each : std::span{layout->shape}.subspan(1))
    own_width *= each;
  if (result.rows > 0 && own_width != width)
    return fail(errc::invalid_argument,
                fmt::format("a row of the NPY body has {} numbers, and the model takes {}", own_width, width));
  result.columns.resize(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    result.columns[i].reserve(result.rows * inputs[i].size_bytes());
  const auto element = size_of(layout->type);
  const auto* next = bytes.data() + layout->offset_bytes;
  for (std::uint64_t row = 0; row < result.rows; ++row)
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto count = inputs[i].elements();
      if (!append_values(result.columns[i], inputs[i], next, layout->type, count))
        return fail(errc::invalid_argument,
                    fmt::format("row {}, input '{}': numbers of {} that {} does not have", row, inputs[i].name,
                                to_string(layout->type), data::describe(inputs[i])));
      next += count * element;
    }
  return result;
}

bool is_npy(std::string_view body) noexcept {
  return body.starts_with("\x93NUMPY");
}

std::string json_of_outputs(const model_label& model, std::span<const float> outputs, std::size_t width) {
  const auto rows = outputs.size() / width;
  const auto label = nlohmann::json{{"name", model.name}, {"step", model.step}};
  auto result =
      fmt::format(R"({{"model":{},"outputs":[)", label.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  result.reserve(result.size() + outputs.size() * most_output_bytes + rows * 3 + 3);
  for (std::size_t row = 0; row < rows; ++row) {
    result += row == 0 ? "[" : ",[";
    for (std::size_t i = 0; i < width; ++i) {
      if (i > 0)
        result += ',';
      append_number_text(result, outputs[row * width + i]);
    }
    result += ']';
  }
  return result + "]}\n";
}

std::string npy_of_outputs(std::span<const float> outputs, std::size_t width) {
  auto result = value_or_throw(serialization::make_npy_head({{}, dtype::f32, {outputs.size() / width, width}}));
  result.append(reinterpret_cast<const char*>(outputs.data()), outputs.size_bytes());
  return result;
}

} // namespace troupe::serving

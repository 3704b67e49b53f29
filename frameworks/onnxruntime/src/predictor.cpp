#include "session.hpp"
#include "stored_model.hpp"
#include "values.hpp"

#include <troupe/data/conversion.hpp>
#include <troupe/onnxruntime.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace troupe::onnxruntime {

namespace {

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// The numbers of a row with this shape; -1 if it is not fixed.
std::int64_t elements_of(std::span<const std::int64_t> row_shape) {
  std::int64_t result = 1;
  for (auto each : row_shape) {
    if (each < 0)
      return -1;
    result *= each;
  }
  return result;
}

/// One input, whose memory is used again for each batch.
struct filled_input {
  std::vector<std::byte> bytes;
  std::vector<std::int64_t> shape;
};

/// The columns that become one input, side by side.
using input_columns = std::vector<std::size_t>;

class model_predictor final : public inference::predictor {
 public:
  explicit model_predictor(session model) : model_(std::move(model)), filled_(model_.inputs().size()) {
    check_inputs();
    for (std::size_t i = 0; i < model_.outputs().size(); ++i)
      add_output(i);
    if (wanted_.empty())
      throw exception{errc::mismatch, "the ONNX model has no output of numbers"};
  }

  const std::vector<std::string>& outputs() const noexcept override { return outputs_; }
  std::string library() const override { return "ONNX Runtime " + model_.library_version(); }

  expected<void> predict(data::batch& rows, std::span<float> out) override {
    if (rows.size() == 0)
      return {};
    for (std::size_t i = 0; i < filled_.size(); ++i)
      TROUPE_TRY(fill(i, rows));
    try {
      if (!is_single_row_)
        return compute(0, rows.size(), rows.size(), out);
      for (std::uint64_t row = 0; row < rows.size(); ++row)
        TROUPE_TRY(compute(row, 1, rows.size(), out.subspan(row * outputs_.size(), outputs_.size())));
      return {};
    } catch (const exception& x) {
      return fail(errc::mismatch, x.reason().message);
    }
  }

 private:
  struct wanted_output {
    std::size_t first;
    std::size_t width;
    dtype type;
  };

  void check_inputs() {
    for (const auto& each : model_.inputs()) {
      if (!dtype_from(each.type) || each.shape.empty())
        throw exception{errc::mismatch,
                        fmt::format("input '{}' of the ONNX model is no tensor of numbers with a dimension for the "
                                    "rows, and nothing else is supported",
                                    each.name)};
      check_rows("input", each);
    }
  }

  void check_rows(const char* what, const model_tensor& tensor) {
    const auto rows = tensor.shape.front();
    if (rows == 1)
      is_single_row_ = true;
    else if (rows >= 0)
      throw exception{errc::mismatch,
                      fmt::format("{} '{}' of the ONNX model has the shape {}: its first dimension must be free, or 1",
                                  what, tensor.name, shape_text(tensor.shape))};
  }

  void add_output(std::size_t index) {
    const auto& tensor = model_.outputs()[index];
    const auto type = dtype_from(tensor.type);
    // Sequences, maps and texts.
    if (!type)
      return;
    const auto width = tensor.shape.empty() ? -1 : elements_of(std::span{tensor.shape}.subspan(1));
    if (width < 0)
      throw exception{errc::mismatch,
                      fmt::format("output '{}' of the ONNX model has the shape {}: how many numbers a row has must be "
                                  "known before it is run",
                                  tensor.name, shape_text(tensor.shape))};
    check_rows("output", tensor);
    wanted_.push_back(index);
    layout_.push_back({outputs_.size(), static_cast<std::size_t>(width), *type});
    for (std::int64_t i = 0; i < width; ++i)
      outputs_.push_back(width == 1 ? tensor.name : fmt::format("{}_{}", tensor.name, i));
  }

  [[nodiscard]] expected<input_columns> columns_of(const model_tensor& input, const data::batch& rows) const {
    if (auto found = rows.find(input.name))
      return input_columns{*found};
    if (model_.inputs().size() > 1) {
      std::string names;
      for (const auto& each : rows.columns())
        names += fmt::format("{}'{}'", names.empty() ? "" : ", ", each.name);
      return fail(errc::not_found,
                  fmt::format("the ONNX model takes '{}', and the data has no such column, but {}", input.name, names));
    }
    input_columns all(rows.columns().size());
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = i;
    return all;
  }

  expected<void> fill(std::size_t index, const data::batch& rows) {
    const auto& input = model_.inputs()[index];
    TROUPE_TRY(auto columns, columns_of(input, rows));
    std::uint64_t width = 0;
    for (auto each : columns)
      width += rows.columns()[each].elements();
    auto& target = filled_[index];
    TROUPE_TRY(target.shape, row_shape(input, columns, width, rows));
    target.shape.front() = static_cast<std::int64_t>(rows.size());
    const auto type = *dtype_from(input.type);
    target.bytes.resize(rows.size() * width * size_of(type));
    auto* next = target.bytes.data();
    for (std::uint64_t row = 0; row < rows.size(); ++row)
      for (auto each : columns) {
        const auto& spec = rows.columns()[each];
        TROUPE_TRY(
            data::convert(rows.bytes(each).subspan(row * spec.size_bytes(), spec.size_bytes()), spec.type, type, next));
        next += spec.elements() * size_of(type);
      }
    return {};
  }

  /// The input's shape with `width` numbers in a row. One free dimension is derived from it; of several, those of the
  /// column are taken.
  [[nodiscard]] static expected<std::vector<std::int64_t>>
  row_shape(const model_tensor& input, const input_columns& columns, std::uint64_t width, const data::batch& rows) {
    auto result = input.shape;
    auto row = std::span{result}.subspan(1);
    const auto& spec = rows.columns()[columns.front()];
    const auto free = std::ranges::count_if(row, [](auto each) { return each < 0; });
    if (free > 1 && columns.size() == 1 && spec.shape.size() == row.size())
      std::ranges::transform(spec.shape, row, row.begin(), [](auto own, auto of_model) {
        return of_model < 0 ? static_cast<std::int64_t>(own) : of_model;
      });
    std::uint64_t known = 1;
    for (auto each : row)
      known *= each > 0 ? static_cast<std::uint64_t>(each) : 1;
    if (free == 1)
      for (auto& each : row)
        if (each < 0)
          each = static_cast<std::int64_t>(known == 0 ? 0 : width / known);
    if (elements_of(row) != static_cast<std::int64_t>(width))
      return fail(errc::mismatch,
                  fmt::format("input '{}' of the ONNX model has the shape {}, and a row of the data has {} numbers{}",
                              input.name, shape_text(input.shape), width,
                              columns.size() == 1 ? fmt::format(" in column '{}'", spec.name)
                                                  : fmt::format(" in its {} columns", columns.size())));
    return result;
  }

  /// Computes `count` of the batch's `all` rows.
  expected<void> compute(std::uint64_t first, std::uint64_t count, std::uint64_t all, std::span<float> out) {
    std::vector<input_value> values;
    for (auto& each : filled_) {
      const auto row_bytes = each.bytes.size() / all;
      each.shape.front() = static_cast<std::int64_t>(count);
      values.push_back(
          {std::span<const std::byte>{each.bytes}.subspan(first * row_bytes, count * row_bytes), each.shape});
    }
    const auto found = model_.run(values, wanted_);
    for (std::size_t i = 0; i < found.size(); ++i)
      TROUPE_TRY(take(found[i], i, count, out));
    return {};
  }

  expected<void> take(const output_value& value, std::size_t index, std::uint64_t count, std::span<float> out) {
    const auto [first, width, type] = layout_[index];
    const auto shape = model_.shape_of(value);
    if (shape.empty() || shape.front() != static_cast<std::int64_t>(count) ||
        elements_of(shape) != static_cast<std::int64_t>(count * width))
      return fail(errc::mismatch,
                  fmt::format("the ONNX model gave an output '{}' of shape {} for {} rows of {} numbers",
                              model_.outputs()[wanted_[index]].name, shape_text(shape), count, width));
    const auto bytes = std::span{static_cast<const std::byte*>(model_.data_of(value)), count * width * size_of(type)};
    numbers_.resize(count * width);
    TROUPE_TRY(data::convert(bytes, type, dtype::f32, reinterpret_cast<std::byte*>(numbers_.data())));
    for (std::uint64_t row = 0; row < count; ++row)
      std::ranges::copy(std::span{numbers_}.subspan(row * width, width),
                        out.begin() + static_cast<std::ptrdiff_t>(row * outputs_.size() + first));
    return {};
  }

  session model_;
  /// The model takes one row at a time.
  bool is_single_row_ = false;
  std::vector<filled_input> filled_;
  std::vector<std::string> outputs_;
  std::vector<std::size_t> wanted_;
  /// Of each wanted output, its place in a row of predictions.
  std::vector<wanted_output> layout_;
  std::vector<float> numbers_;
};

/// Converts an exception of the library, which says `errc::user_error` when it cannot read the model.
error of_model(const exception& x) {
  return {x.reason().code == errc::user_error ? errc::damaged : x.reason().code, x.reason().message};
}

expected<session> load(std::span<const std::byte> model, const std::filesystem::path& asked) {
  TROUPE_TRY(auto path, find_library(asked));
  TROUPE_TRY(auto functions, library::open(path));
  try {
    return session{functions, model};
  } catch (const exception& x) {
    return fail(of_model(x));
  }
}

tensor_description description_of(const model_tensor& tensor) {
  tensor_description result{tensor.name, dtype_from(tensor.type), {}};
  if (!tensor.shape.empty())
    result.row_shape.assign(tensor.shape.begin() + 1, tensor.shape.end());
  return result;
}

} // namespace

expected<model_description> describe_model(const serialization::checkpoint& source,
                                           const std::filesystem::path& library) {
  TROUPE_TRY(auto bytes, read_stored_model(source));
  TROUPE_TRY(auto model, load(bytes, library));
  model_description result;
  for (const auto& each : model.inputs())
    result.inputs.push_back(description_of(each));
  for (const auto& each : model.outputs())
    result.outputs.push_back(description_of(each));
  return result;
}

expected<inference::predictor_ptr> load_predictor(const serialization::checkpoint& source,
                                                  const std::filesystem::path& library) {
  TROUPE_TRY(auto model, read_stored_model(source));
  return load_predictor(model, library);
}

expected<inference::predictor_ptr> load_predictor(std::span<const std::byte> model,
                                                  const std::filesystem::path& library) {
  TROUPE_TRY(auto loaded, load(model, library));
  try {
    return std::make_unique<model_predictor>(std::move(loaded));
  } catch (const exception& x) {
    return fail(of_model(x));
  }
}

} // namespace troupe::onnxruntime

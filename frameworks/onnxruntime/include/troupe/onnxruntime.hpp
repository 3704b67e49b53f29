#pragma once

#include <troupe/dtype.hpp>
#include <troupe/error.hpp>
#include <troupe/inference/predictor.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// Predicts with models in the ONNX format, by ONNX Runtime. Its library (1.14 or later) is opened at run time.
namespace troupe::onnxruntime {

/// The library to use: `asked` if it is not empty, otherwise `$TROUPE_ONNXRUNTIME`, the system's `libonnxruntime.so`,
/// or that of the Python package `onnxruntime`. Fails with `errc::unsatisfiable`, saying how to install it.
[[nodiscard]] expected<std::filesystem::path> find_library(const std::filesystem::path& asked = {});

/// What a model takes or gives.
struct tensor_description {
  std::string name;
  /// Empty for types that are no numbers.
  std::optional<dtype> type;
  /// The dimensions of one row; -1 where the model takes any.
  std::vector<std::int64_t> row_shape;
};

/// A loaded model.
struct model_description {
  std::vector<tensor_description> inputs;
  std::vector<tensor_description> outputs;
};

/// The inputs and outputs of the model in a checkpoint of `store_model`. Fails as `load_predictor` does.
[[nodiscard]] expected<model_description> describe_model(const serialization::checkpoint& source,
                                                         const std::filesystem::path& library = {});

/// Makes a checkpoint of an ONNX file, to predict with over a run's workers (`inference::batch_predictor`), in a
/// directory for such checkpoints, and returns its path; the same model has the same. The file must have all weights,
/// and none in files beside it. Fails with `errc::not_found`, `errc::invalid_argument` or `errc::io_error`.
[[nodiscard]] expected<std::filesystem::path> store_model(const std::filesystem::path& model,
                                                          const std::filesystem::path& directory);

/// A predictor by the model in a checkpoint of `store_model`, computed in one thread.
///
/// Each of the model's inputs takes the data set's column of its name. A model with one input takes, if there is no
/// such column, all columns side by side, in order; images may lack a dimension of length 1. Numbers are converted to
/// the input's type. The first dimension of each input and output is the rows; where the model fixes it, it must be 1.
///
/// Outputs are named as the model's, or "NAME_0", "NAME_1", ... for one of several numbers a row. Sequences and maps,
/// which exporters of scikit-learn add, are left out.
///
/// Fails with `errc::not_found` for any other checkpoint, `errc::unsatisfiable` without the library, `errc::damaged`
/// for a model that it cannot read, and `errc::mismatch` for one with inputs or outputs that are not supported.
[[nodiscard]] expected<inference::predictor_ptr> load_predictor(const serialization::checkpoint& source,
                                                                const std::filesystem::path& library = {});

/// The same for a model in memory.
[[nodiscard]] expected<inference::predictor_ptr> load_predictor(std::span<const std::byte> model,
                                                                const std::filesystem::path& library = {});

} // namespace troupe::onnxruntime

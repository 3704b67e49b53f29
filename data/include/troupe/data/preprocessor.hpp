#pragma once

#include <troupe/data/batch.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/data/exact_reduction.hpp>
#include <troupe/tensor.hpp>
#include <troupe/tracked_state.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::serialization {
class checkpoint;
}

namespace troupe::data {

/// Transforms the columns of batches: scales numbers, encodes categories. What it learns from the training data is
/// stored in tensors that are tracked with the model, so that they are in its checkpoints and predictions use the same
/// transformation.
///
///     auto inputs = data::chain({data::standard_scaler({"size", "age"}), data::one_hot_encoder({"kind"})});
///     inputs->fit(*training, reduction);      // every rank; the same bits on any number of workers
///     inputs->track(ctx.state(), "inputs");   // restored here when the run resumes from a checkpoint
///
/// `const` members are thread-safe.
class preprocessor {
 public:
  /// A learned tensor, which the preprocessor owns.
  struct state_tensor {
    tensor_spec spec;
    std::vector<std::byte> bytes;
  };

  preprocessor() = default;
  preprocessor(const preprocessor&) = delete;
  preprocessor& operator=(const preprocessor&) = delete;
  virtual ~preprocessor() = default;

  /// The preprocessor's kind and options, without what it learned; the input of `make_preprocessor`.
  [[nodiscard]] virtual nlohmann::json description() const = 0;

  /// The columns that `transform` makes from these. Fails as `transform` does.
  [[nodiscard]] virtual expected<std::vector<column_spec>> output(std::vector<column_spec> columns) const = 0;

  /// Learns from the training data, ignoring missing values (NaN, the code -1). Collective: every rank calls it on the
  /// same data set. Throws `exception` for unsuitable data, after `track`, and as fetching does.
  virtual void fit(const data_set& training, exact_reduction& reduction) = 0;

  /// Changes a batch in place. Fails with `errc::not_found` or `errc::mismatch` if a column is missing or differs in
  /// type or size from the fitted one, and with `errc::invalid_argument` before `fit` and for unknown categories if
  /// those are refused. The content of the batch is then undefined.
  [[nodiscard]] virtual expected<void> transform(batch& samples) const = 0;

  /// Reverses `transform`, up to rounding. Fails with `errc::unsatisfiable` for a kind without an inverse.
  [[nodiscard]] virtual expected<void> inverse(batch& samples) const;

  /// Tracks the learned tensors under "preprocessor/NAME/", and the description in the state's values. If the run
  /// resumes from a checkpoint, this restores the learned tensors from it. The preprocessor must outlive the training
  /// function. Throws `exception` as `tracked_state::track` does: `errc::mismatch` if the checkpoint's preprocessor was
  /// fitted on other columns or categories.
  void track(tracked_state& state, std::string_view name);

  /// Restores the learned tensors from a run's checkpoint. Fails with `errc::not_found` if nothing was tracked under
  /// this name, with `errc::mismatch` if a preprocessor of another kind was, and as reading does.
  [[nodiscard]] expected<void> restore(const serialization::checkpoint& source, std::string_view name);

  /// Lists the learned tensors, with `prefix` in front of their names. For chains and your own kinds.
  virtual void list_state(const std::string& prefix, std::vector<tensor_view>& out);

  /// Adopts the tensors whose names begin with `prefix`. Fails with `errc::mismatch` if they are not valid for this
  /// kind.
  [[nodiscard]] virtual expected<void> adopt_state(const std::string& prefix,
                                                   const std::map<std::string, state_tensor>& tensors);

 protected:
  /// Sets one tensor. Throws `exception` once the state is tracked, because its memory must not move.
  void set_state(std::string name, dtype type, std::span<const std::byte> bytes);
  template <class T>
  void set_state(std::string name, std::span<const T> values) {
    set_state(std::move(name), dtype_of<T>, std::as_bytes(values));
  }

  /// The values of a tensor; empty if it does not exist or has another type.
  template <class T>
  [[nodiscard]] std::span<const T> state_values(std::string_view name) const {
    const auto* found = find_state(name);
    if (found == nullptr || found->spec.type != dtype_of<T>)
      return {};
    return {reinterpret_cast<const T*>(found->bytes.data()), found->bytes.size() / sizeof(T)};
  }

  [[nodiscard]] const state_tensor* find_state(std::string_view name) const;

 private:
  std::map<std::string, state_tensor, std::less<>> state_;
  bool tracked_ = false;
};

using preprocessor_ptr = std::shared_ptr<preprocessor>;

/// Scales numbers to mean 0 and variance 1 over the training data (two passes; the variance is divided by the count; a
/// constant feature becomes 0). Each element of a sample is a separate feature. Output: f32 of the same shape.
[[nodiscard]] preprocessor_ptr standard_scaler(std::vector<std::string> columns);

/// Scales numbers from the training data's range to [low, high]; values outside of the range exceed it. A constant
/// feature becomes `low`. Output: f32 of the same shape.
[[nodiscard]] preprocessor_ptr min_max_scaler(std::vector<std::string> columns, double low = 0, double high = 1);

/// Replaces missing numbers (NaN) by the feature's mean over the training data. Output: f32 of the same shape. No
/// inverse.
[[nodiscard]] preprocessor_ptr mean_imputer(std::vector<std::string> columns);

/// The norm to scale to 1: the sum of absolute values, the Euclidean norm, the largest absolute value.
enum class vector_norm : std::uint8_t { l1, l2, max };

/// Scales each sample's vector to norm 1; a zero vector is unchanged. Learns nothing. Output: f32 of the same shape. No
/// inverse.
[[nodiscard]] preprocessor_ptr normaliser(std::vector<std::string> columns, vector_norm norm = vector_norm::l2);

/// Multiplies every number, such as byte pixels by 1/255. Learns nothing. Output: f32 of the same shape.
[[nodiscard]] preprocessor_ptr rescaler(std::vector<std::string> columns, double factor);

/// What to do with a missing category, or one that is not in the training data.
enum class unknown_category : std::uint8_t {
  /// Fail with an error that names it.
  refused,
  /// Use one additional category after the others.
  own_category,
};

/// Encodes categories (a categorical column by its texts, or integers) as vectors of zeros with a single one: f32 {n},
/// or {n + 1} with a category for unknown ones. n is the number of categories in the training data, in byte order or by
/// value. The column must hold single numbers. The inverse restores codes and texts, with -1 for unknown ones.
[[nodiscard]] preprocessor_ptr one_hot_encoder(std::vector<std::string> columns,
                                               unknown_category unknown = unknown_category::refused);

/// Encodes categories as i64 numbers from 0 to n - 1 (n for unknown ones).
[[nodiscard]] preprocessor_ptr ordinal_encoder(std::vector<std::string> columns,
                                               unknown_category unknown = unknown_category::refused);

/// Joins f32 columns to one vector in this order, as a dense layer takes it, and removes them. Learns nothing. No
/// inverse.
[[nodiscard]] preprocessor_ptr column_join(std::vector<std::string> columns, std::string into);

/// Applies the parts one after the other; each is fitted on the output of those before it.
[[nodiscard]] preprocessor_ptr chain(std::vector<preprocessor_ptr> parts);

/// Makes one of the kinds above from its description, without what it learned. Fails with `errc::not_found` for any
/// other kind and with `errc::damaged` for an invalid description.
[[nodiscard]] expected<preprocessor_ptr> make_preprocessor(const nlohmann::json& description);

/// Makes and restores the preprocessor that a run tracked under `name`, for predictions. Fails as `make_preprocessor`
/// and `preprocessor::restore` do.
[[nodiscard]] expected<preprocessor_ptr> load_preprocessor(const serialization::checkpoint& source,
                                                           std::string_view name);

/// A data set transformed by a fitted preprocessor. Fails as `preprocessor::output` does.
[[nodiscard]] expected<data_set_ptr> transformed(data_set_ptr set, std::shared_ptr<const preprocessor> how);

} // namespace troupe::data

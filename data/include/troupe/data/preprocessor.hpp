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
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::serialization {
class checkpoint;
}

namespace troupe::data {

/// Changes the columns of batches: scales numbers, encodes categories. What it has learned from the training data is
/// kept in tensors that are tracked with the model, so that they are in its checkpoints, and those who predict with it
/// do the same.
///
///     auto inputs = data::chain({data::standard_scaler({"size", "age"}), data::one_hot_encoder({"kind"})});
///     inputs->fit(*training, reduction);      // every rank; the same bits on any number of workers
///     inputs->track(ctx.state(), "inputs");   // restored here when the run goes on from a checkpoint
///
/// `const` members may be called from several threads at once.
class preprocessor {
 public:
  /// A tensor of what was learned, which this owns.
  struct state_tensor {
    tensor_spec spec;
    std::vector<std::byte> bytes;
  };

  preprocessor() = default;
  preprocessor(const preprocessor&) = delete;
  preprocessor& operator=(const preprocessor&) = delete;
  virtual ~preprocessor() = default;

  /// What it is, without what it has learned: what `make_preprocessor` makes the same of.
  [[nodiscard]] virtual nlohmann::json description() const = 0;

  /// The columns that `transform` makes of these. Fails as `transform` does.
  [[nodiscard]] virtual expected<std::vector<column_spec>> output(std::vector<column_spec> columns) const = 0;

  /// Learns from the training data. Missing values (NaN, the code -1) are left out. Collective: every rank calls it,
  /// on the same data set. Throws `exception` for data that cannot be learned from, after `track`, and as fetching
  /// does.
  virtual void fit(const data_set& training, exact_reduction& reduction) = 0;

  /// Changes a batch in place. Fails with `errc::not_found` or `errc::mismatch` for a column that is absent or of
  /// another type or size than the one it was fitted on, and with `errc::invalid_argument` before `fit` and for
  /// categories that it does not know and was told to refuse. The batch then holds anything.
  [[nodiscard]] virtual expected<void> transform(batch& samples) const = 0;

  /// Takes `transform` back, up to rounding. Fails with `errc::unsatisfiable` for a kind that cannot.
  [[nodiscard]] virtual expected<void> inverse(batch& samples) const;

  /// Tracks what was learned, under "preprocessor/NAME/", and the description in the state's values. If the run goes on
  /// from a checkpoint, this then holds what that learned. Outlives the training function. Throws `exception` as
  /// `tracked_state::track` does: `errc::mismatch` where the checkpoint's was fitted on other columns or categories.
  void track(tracked_state& state, std::string_view name);

  /// Takes over what a run has learned from its checkpoint. Fails with `errc::not_found` where nothing was tracked
  /// under this name, `errc::mismatch` where what was is of another kind, and as reading does.
  [[nodiscard]] expected<void> restore(const serialization::checkpoint& source, std::string_view name);

  // -- for chains and for kinds of one's own -----

  /// The tensors of what was learned, each with `prefix` in front of its name.
  virtual void list_state(const std::string& prefix, std::vector<tensor_view>& out);

  /// Takes over the tensors whose names begin with `prefix`. Fails with `errc::mismatch` where they do not fit.
  [[nodiscard]] virtual expected<void> adopt_state(const std::string& prefix,
                                                   const std::map<std::string, state_tensor>& tensors);

 protected:
  /// Sets one tensor. Throws `exception` once the state is tracked: its memory must not move then.
  void set_state(std::string name, dtype type, std::span<const std::byte> bytes);
  template <class T>
  void set_state(std::string name, std::span<const T> values) {
    set_state(std::move(name), dtype_of<T>, std::as_bytes(values));
  }

  /// The values of a tensor; empty where it is not there, or of another type.
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

/// Numbers to mean 0 and variance 1 over the training data (two passes; the variance is divided by the count; a feature
/// that is constant becomes 0). Each number of a sample is a feature of its own. Gives f32 of the same shape.
[[nodiscard]] preprocessor_ptr standard_scaler(std::vector<std::string> columns);

/// Numbers from the training data's range to [low, high]; others go beyond it. A feature that is constant becomes
/// `low`. Gives f32 of the same shape.
[[nodiscard]] preprocessor_ptr min_max_scaler(std::vector<std::string> columns, double low = 0, double high = 1);

/// Missing numbers (NaN) to their feature's mean over the training data. Gives f32 of the same shape. No inverse.
[[nodiscard]] preprocessor_ptr mean_imputer(std::vector<std::string> columns);

/// The length that a normaliser makes 1: the sum of absolute values, the Euclidean length, the largest absolute value.
enum class vector_norm : std::uint8_t { l1, l2, max };

/// Each sample's vector to length 1; a vector of zeros stays. Learns nothing. Gives f32 of the same shape. No inverse.
[[nodiscard]] preprocessor_ptr normaliser(std::vector<std::string> columns, vector_norm norm = vector_norm::l2);

/// Multiplies every number: pixels of bytes times 1/255. Learns nothing. Gives f32 of the same shape.
[[nodiscard]] preprocessor_ptr rescaler(std::vector<std::string> columns, double factor);

/// What becomes of a category that the training data did not have, and of a missing one.
enum class unknown_category : std::uint8_t {
  /// An error that names it.
  refused,
  /// One more category, behind the others.
  own_category,
};

/// Categories (of a categorical column by their texts; or integers) to vectors of zeros with a one: f32 {n}, or {n + 1}
/// with a category for what is unknown. n are the categories of the training data, in the order of their bytes, or by
/// value. Takes single numbers only. The inverse gives back codes and texts, -1 for what was unknown.
[[nodiscard]] preprocessor_ptr one_hot_encoder(std::vector<std::string> columns,
                                               unknown_category unknown = unknown_category::refused);

/// The same to i64 numbers from 0 to n - 1 (n for what is unknown).
[[nodiscard]] preprocessor_ptr ordinal_encoder(std::vector<std::string> columns,
                                               unknown_category unknown = unknown_category::refused);

/// Joins columns of f32 to one vector, in this order: what a dense layer takes. The columns are gone then. Learns
/// nothing. No inverse.
[[nodiscard]] preprocessor_ptr column_join(std::vector<std::string> columns, std::string into);

/// One after the other; each is fitted on what those before it give.
[[nodiscard]] preprocessor_ptr chain(std::vector<preprocessor_ptr> parts);

/// One of the kinds above, of its description, without what it has learned. Fails with `errc::not_found` for any other
/// kind and `errc::damaged` for what is no description.
[[nodiscard]] expected<preprocessor_ptr> make_preprocessor(const nlohmann::json& description);

/// What a run has tracked under `name`, of its checkpoint: for those who predict. Fails as `make_preprocessor` and
/// `preprocessor::restore` do.
[[nodiscard]] expected<preprocessor_ptr> load_preprocessor(const serialization::checkpoint& source,
                                                           std::string_view name);

/// A data set as a preprocessor, which is fitted, makes it. Fails as `preprocessor::output` does.
[[nodiscard]] expected<data_set_ptr> transformed(data_set_ptr set, std::shared_ptr<const preprocessor> how);

} // namespace troupe::data

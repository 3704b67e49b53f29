#pragma once

#include "model.hpp"

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/tensor.hpp>

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

namespace troupe::tensorflow {

/// The memory of a model's variables, which TensorFlow reads in place.
class variables {
 public:
  /// All zeros.
  explicit variables(const model_description& model);

  /// The values that the model was exported with. Throws `exception` as `model::call` does.
  void initialise(model& from);

  [[nodiscard]] std::size_t size() const noexcept { return all_.size(); }
  [[nodiscard]] const variable& operator[](std::size_t index) const noexcept { return *all_[index].described; }
  [[nodiscard]] std::span<std::byte> bytes(std::size_t index) noexcept;

  /// Appends those of the given roles to the arguments of a function.
  void append(std::vector<tensor_argument>& arguments, std::initializer_list<variable_role> roles);

  /// Calls `function` for those of the given roles, in order, with their index.
  void each(std::initializer_list<variable_role> roles, const std::function<void(std::size_t index)>& function) const;

 private:
  struct stored {
    const variable* described;
    collectives::aligned_buffer memory;
  };

  std::vector<stored> all_;
};

/// As TensorFlow takes it.
[[nodiscard]] std::vector<std::int64_t> shape_of(const tensor_spec& spec);

/// Copies a result to memory of its size. Throws `exception` with `errc::mismatch` for another size.
void copy(const tensor_result& from, std::span<std::byte> target);

enum class with_target : bool { no, yes };

/// Appends the samples' columns to the arguments of a function. Throws `exception` as `model_columns::take` does.
void append_samples(std::vector<tensor_argument>& arguments, const model_description& model, model_columns& columns,
                    const data::batch& samples, with_target target);

} // namespace troupe::tensorflow

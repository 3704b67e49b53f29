#pragma once

#include "library.hpp"

#include <troupe/onnxruntime.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe::onnxruntime {

/// An input or output of a model, as it says.
struct model_tensor {
  std::string name;
  /// `undefined` for sequences and maps.
  element_type type = element_type::undefined;
  /// -1 where the model takes any.
  std::vector<std::int64_t> shape;
};

/// A tensor in the caller's memory.
struct input_value {
  std::span<const std::byte> bytes;
  std::vector<std::int64_t> shape;
};

/// A tensor that a run has made.
class output_value {
 public:
  output_value(const library& from, ort_value* value) : value_(value, from.functions().release_value) {}

  [[nodiscard]] ort_value* get() const noexcept { return value_.get(); }

 private:
  std::unique_ptr<ort_value, void (*)(ort_value*)> value_;
};

/// A loaded model that computes in one thread. All throw `exception` with `errc::user_error` and the library's text.
class session {
 public:
  session(library from, std::span<const std::byte> model);

  [[nodiscard]] const std::string& library_version() const noexcept { return library_.version(); }
  [[nodiscard]] const std::vector<model_tensor>& inputs() const noexcept { return inputs_; }
  [[nodiscard]] const std::vector<model_tensor>& outputs() const noexcept { return outputs_; }

  /// Computes the outputs at `wanted`. `values` are all inputs, in order and of the model's types.
  [[nodiscard]] std::vector<output_value> run(std::span<const input_value> values, std::span<const std::size_t> wanted);

  [[nodiscard]] std::vector<std::int64_t> shape_of(const output_value& value) const;
  [[nodiscard]] const void* data_of(const output_value& value) const;

 private:
  template <class Object>
  using owned = std::unique_ptr<Object, void (*)(Object*)>;

  [[nodiscard]] std::vector<std::int64_t> dimensions_of(const ort_tensor_info* info) const;
  [[nodiscard]] model_tensor describe(ort_type_info* type, char* name) const;

  library library_;
  owned<ort_environment> environment_;
  owned<ort_memory_info> memory_;
  owned<ort_session> session_;
  std::vector<model_tensor> inputs_;
  std::vector<model_tensor> outputs_;
};

} // namespace troupe::onnxruntime

#pragma once

#include "description.hpp"
#include "library.hpp"

#include <troupe/data/batch.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::tensorflow {

/// A tensor in the caller's memory, which lives until the function has been called.
struct tensor_argument {
  dtype type;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

/// A tensor that a function has returned.
class tensor_result {
 public:
  tensor_result(const library_functions& functions, TF_Tensor* tensor) : tensor_(tensor, functions.TF_DeleteTensor) {
    bytes_ = {static_cast<const std::byte*>(functions.TF_TensorData(tensor)), functions.TF_TensorByteSize(tensor)};
  }

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::unique_ptr<TF_Tensor, void (*)(TF_Tensor*)> tensor_;
  std::span<const std::byte> bytes_;
};

/// A loaded SavedModel of `troupe_export.py`, which computes in one thread.
class model {
 public:
  /// Throws `exception`: as `read_description` fails, and `errc::user_error` with TensorFlow's text.
  model(library_ptr from, const std::filesystem::path& directory);

  [[nodiscard]] const model_description& description() const noexcept { return description_; }

  /// Calls one of the functions. Throws `exception` with `errc::user_error` and TensorFlow's text.
  [[nodiscard]] std::vector<tensor_result> call(std::string_view function, std::span<const tensor_argument> arguments);

 private:
  template <class Object>
  using owned = std::unique_ptr<Object, void (*)(Object*)>;

  struct session_deleter {
    const library_functions* functions;
    void operator()(TF_Session* session) const;
  };

  struct loaded_function {
    std::vector<graph_tensor> inputs;
    std::vector<graph_tensor> outputs;
  };

  [[nodiscard]] graph_tensor find(const std::string& tensor) const;
  void check(const char* what) const;

  library_ptr library_;
  model_description description_;
  owned<TF_Status> status_;
  owned<TF_Graph> graph_;
  std::unique_ptr<TF_Session, session_deleter> session_;
  std::map<std::string, loaded_function, std::less<>> functions_;
};

/// The columns of a batch that a model takes, converted to its types. The memory is used again.
class model_columns {
 public:
  /// Throws `exception` with `errc::not_found` or `errc::mismatch` for other columns.
  [[nodiscard]] tensor_argument take(const data::batch& samples, const tensor_spec& wanted, std::size_t place);

 private:
  std::vector<std::vector<std::byte>> converted_;
};

} // namespace troupe::tensorflow

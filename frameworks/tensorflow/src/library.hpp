#pragma once

#include <troupe/dtype.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

/// The used part of TensorFlow's C interface (`tensorflow/c/c_api.h`), from a library opened at run time.
namespace troupe::tensorflow {

/// Objects of the library.
struct TF_Status;
struct TF_SessionOptions;
struct TF_Graph;
struct TF_Session;
struct TF_Operation;
struct TF_Tensor;
struct TF_Buffer;

struct graph_tensor {
  TF_Operation* operation;
  int index;
};

using tensor_deallocator = void (*)(void* data, std::size_t size_bytes, void* argument);

struct library_functions {
  const char* (*TF_Version)();
  TF_Status* (*TF_NewStatus)();
  void (*TF_DeleteStatus)(TF_Status*);
  int (*TF_GetCode)(const TF_Status*);
  const char* (*TF_Message)(const TF_Status*);
  TF_SessionOptions* (*TF_NewSessionOptions)();
  void (*TF_DeleteSessionOptions)(TF_SessionOptions*);
  void (*TF_SetConfig)(TF_SessionOptions*, const void* proto, std::size_t size_bytes, TF_Status*);
  TF_Graph* (*TF_NewGraph)();
  void (*TF_DeleteGraph)(TF_Graph*);
  TF_Operation* (*TF_GraphOperationByName)(TF_Graph*, const char* name);
  TF_Session* (*TF_LoadSessionFromSavedModel)(const TF_SessionOptions*, const TF_Buffer* run_options,
                                              const char* directory, const char* const* tags, int tag_count, TF_Graph*,
                                              TF_Buffer* meta_graph, TF_Status*);
  void (*TF_DeleteSession)(TF_Session*, TF_Status*);
  void (*TF_SessionRun)(TF_Session*, const TF_Buffer* run_options, const graph_tensor* inputs,
                        TF_Tensor* const* input_values, int input_count, const graph_tensor* outputs,
                        TF_Tensor** output_values, int output_count, const TF_Operation* const* targets,
                        int target_count, TF_Buffer* run_metadata, TF_Status*);
  TF_Tensor* (*TF_NewTensor)(int type, const std::int64_t* shape, int dimensions, void* data, std::size_t size_bytes,
                             tensor_deallocator, void* argument);
  void (*TF_DeleteTensor)(TF_Tensor*);
  int (*TF_TensorType)(const TF_Tensor*);
  int (*TF_NumDims)(const TF_Tensor*);
  std::int64_t (*TF_Dim)(const TF_Tensor*, int index);
  std::size_t (*TF_TensorByteSize)(const TF_Tensor*);
  void* (*TF_TensorData)(const TF_Tensor*);
};

/// An opened library, which is never closed.
class library {
 public:
  /// Fails with `errc::unsatisfiable` if the library cannot be opened or lacks a function.
  [[nodiscard]] static expected<std::shared_ptr<const library>> open(const std::filesystem::path& path);

  [[nodiscard]] const library_functions& functions() const noexcept { return functions_; }

 private:
  library_functions functions_{};
};

using library_ptr = std::shared_ptr<const library>;

/// The number of a type in `TF_DataType`; empty for those that are not supported.
[[nodiscard]] std::optional<int> tensorflow_type(dtype type) noexcept;

} // namespace troupe::tensorflow

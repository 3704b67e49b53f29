#pragma once

#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>

/// The used part of ONNX Runtime's C interface, from a library opened at run time. `OrtApi` is a table of functions
/// that only grows, so that their places in it are those of `onnxruntime_c_api.h` in every version since 1.0.
namespace troupe::onnxruntime {

/// Objects of the library.
struct ort_status;
struct ort_environment;
struct ort_session;
struct ort_session_options;
struct ort_value;
struct ort_memory_info;
struct ort_type_info;
struct ort_tensor_info;
struct ort_allocator;

/// `ONNXTensorElementDataType`.
enum class element_type : int {
  undefined = 0,
  f32 = 1,
  u8 = 2,
  i8 = 3,
  u16 = 4,
  i16 = 5,
  i32 = 6,
  i64 = 7,
  text = 8,
  boolean = 9,
  f16 = 10,
  f64 = 11,
  u32 = 12,
  u64 = 13,
  bf16 = 16,
};

/// `ONNX_TYPE_TENSOR`.
inline constexpr int kind_tensor = 1;

/// A null status is success. Null output pointers of `run` are filled by the library.
struct library_functions {
  const char* (*get_error_message)(const ort_status* status);
  ort_status* (*create_environment)(int log_level, const char* log_name, ort_environment** out);
  ort_status* (*create_session_from_array)(const ort_environment* environment, const void* model, std::size_t size,
                                           const ort_session_options* options, ort_session** out);
  ort_status* (*run)(ort_session* session, const void* options, const char* const* input_names,
                     const ort_value* const* inputs, std::size_t input_count, const char* const* output_names,
                     std::size_t output_count, ort_value** outputs);
  ort_status* (*create_session_options)(ort_session_options** out);
  ort_status* (*set_log_severity)(ort_session_options* options, int level);
  ort_status* (*set_threads_of_operator)(ort_session_options* options, int threads);
  ort_status* (*set_threads_of_graph)(ort_session_options* options, int threads);
  ort_status* (*get_input_count)(const ort_session* session, std::size_t* out);
  ort_status* (*get_output_count)(const ort_session* session, std::size_t* out);
  ort_status* (*get_input_type)(const ort_session* session, std::size_t index, ort_type_info** out);
  ort_status* (*get_output_type)(const ort_session* session, std::size_t index, ort_type_info** out);
  ort_status* (*get_input_name)(const ort_session* session, std::size_t index, ort_allocator* allocator, char** out);
  ort_status* (*get_output_name)(const ort_session* session, std::size_t index, ort_allocator* allocator, char** out);
  ort_status* (*create_tensor)(const ort_memory_info* where, void* data, std::size_t size_bytes,
                               const std::int64_t* shape, std::size_t dimensions, element_type type, ort_value** out);
  ort_status* (*get_tensor_data)(ort_value* value, void** out);
  ort_status* (*get_tensor_info_of_type)(const ort_type_info* type, const ort_tensor_info** out);
  ort_status* (*get_kind_of_type)(const ort_type_info* type, int* out);
  ort_status* (*get_element_type)(const ort_tensor_info* info, element_type* out);
  ort_status* (*get_dimension_count)(const ort_tensor_info* info, std::size_t* out);
  ort_status* (*get_dimensions)(const ort_tensor_info* info, std::int64_t* out, std::size_t count);
  ort_status* (*get_tensor_info)(const ort_value* value, ort_tensor_info** out);
  ort_status* (*create_cpu_memory_info)(int allocator, int memory, ort_memory_info** out);
  ort_status* (*free_of_allocator)(ort_allocator* allocator, void* memory);
  ort_status* (*get_default_allocator)(ort_allocator** out);
  void (*release_environment)(ort_environment* object);
  void (*release_status)(ort_status* object);
  void (*release_memory_info)(ort_memory_info* object);
  void (*release_session)(ort_session* object);
  void (*release_value)(ort_value* object);
  void (*release_type_info)(ort_type_info* object);
  void (*release_tensor_info)(ort_tensor_info* object);
  void (*release_session_options)(ort_session_options* object);
};

/// An opened library, which is never closed.
class library {
 public:
  /// Fails with `errc::unsatisfiable` if the library cannot be opened or is too old.
  [[nodiscard]] static expected<library> open(const std::filesystem::path& path);

  [[nodiscard]] const library_functions& functions() const noexcept { return functions_; }

  /// "1.32.0".
  [[nodiscard]] const std::string& version() const noexcept { return version_; }

  /// Throws `exception` with `errc::user_error` and the library's text, unless `status` is null.
  void check(ort_status* status) const;

 private:
  library_functions functions_{};
  std::string version_;
};

} // namespace troupe::onnxruntime

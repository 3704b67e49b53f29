#pragma once

#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

/// The used part of LightGBM's C interface, from a library opened at run time. The declarations are those of `c_api.h`
/// and `meta.h` in 4.x, for which Debian has no headers.
namespace troupe::lightgbm {

/// `comm_size_t`: bytes.
using transfer_size = std::int32_t;
/// Adds `size` bytes of elements to those at `output`.
using reduce_function = void (*)(const char* input, char* output, int type_size, transfer_size size);
/// Combines all ranks' inputs, block by block; `output` receives the block of this rank.
using reduce_scatter_function = void (*)(char* input, transfer_size input_size, int type_size,
                                         const transfer_size* block_start, const transfer_size* block_size, int blocks,
                                         char* output, transfer_size output_size, const reduce_function& reduce);
/// Gathers the blocks of all ranks; `input` is this rank's, and may be part of `output`.
using all_gather_function = void (*)(char* input, transfer_size input_size, const transfer_size* block_start,
                                     const transfer_size* block_size, int blocks, char* output,
                                     transfer_size output_size);

inline constexpr int type_f32 = 0;
inline constexpr int type_f64 = 1;
inline constexpr int predict_normal = 0;
inline constexpr int predict_raw_score = 1;

struct library_functions {
  const char* (*LGBM_GetLastError)();
  int (*LGBM_DatasetCreateFromMat)(const void* data, int data_type, std::int32_t rows, std::int32_t columns,
                                   int is_row_major, const char* parameters, void* reference, void** out);
  int (*LGBM_DatasetSetField)(void* set, const char* field, const void* data, int elements, int type);
  int (*LGBM_DatasetFree)(void* set);
  int (*LGBM_BoosterCreate)(void* training, const char* parameters, void** out);
  int (*LGBM_BoosterLoadModelFromString)(const char* model, int* iterations, void** out);
  int (*LGBM_BoosterFree)(void* booster);
  int (*LGBM_BoosterMerge)(void* booster, void* other);
  int (*LGBM_BoosterAddValidData)(void* booster, void* validation);
  int (*LGBM_BoosterUpdateOneIter)(void* booster, int* is_finished);
  int (*LGBM_BoosterUpdateOneIterCustom)(void* booster, const float* gradients, const float* hessians,
                                         int* is_finished);
  int (*LGBM_BoosterGetNumPredict)(void* booster, int set, std::int64_t* count);
  int (*LGBM_BoosterGetPredict)(void* booster, int set, std::int64_t* count, double* out);
  int (*LGBM_BoosterGetEvalCounts)(void* booster, int* count);
  int (*LGBM_BoosterGetEvalNames)(void* booster, int count, int* out_count, std::size_t room, std::size_t* out_room,
                                  char** names);
  int (*LGBM_BoosterGetEval)(void* booster, int set, int* count, double* values);
  int (*LGBM_BoosterGetNumFeature)(void* booster, int* count);
  int (*LGBM_BoosterSaveModelToString)(void* booster, int first, int count, int importance, std::int64_t room,
                                       std::int64_t* out_size, char* text);
  int (*LGBM_BoosterCalcNumPredict)(void* booster, int rows, int kind, int first, int count, std::int64_t* out_size);
  int (*LGBM_BoosterPredictForMat)(void* booster, const void* data, int data_type, std::int32_t rows,
                                   std::int32_t columns, int is_row_major, int kind, int first, int count,
                                   const char* parameters, std::int64_t* out_size, double* out);
  int (*LGBM_NetworkInitWithFunctions)(int machines, int rank, void* reduce_scatter, void* all_gather);
  int (*LGBM_NetworkFree)();
};

/// An opened library. It is never closed, because its threads may still be running.
class library {
 public:
  /// Fails with `errc::unsatisfiable` if the library cannot be opened or lacks a function.
  [[nodiscard]] static expected<std::shared_ptr<const library>> open(const std::filesystem::path& path);

  [[nodiscard]] const library_functions& functions() const noexcept { return functions_; }

  /// Throws LightGBM's last error as `exception` with `errc::user_error`, unless `result` is 0.
  void check(int result) const;

 private:
  library_functions functions_{};
};

using library_ptr = std::shared_ptr<const library>;

} // namespace troupe::lightgbm

#pragma once

#include <troupe/dtype.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

struct ncclComm;

/// The part of NCCL's C interface that is used, declared without its header: the library is opened at run time and may
/// be absent. nccl/check.cpp compares all of it with nccl.h where that is installed.
namespace troupe::collectives::nccl {

using comm = ::ncclComm*;

enum result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

enum data_type : int { int8 = 0, uint8 = 1, int32 = 2, int64 = 4, float16 = 6, float32 = 7, float64 = 8, bfloat16 = 9 };

enum operation : int { sum = 0 };

struct unique_id {
  char internal[128];
};

/// The first fields of ncclConfig_t, which contains its own size. `version` is that of these fields; a later library
/// uses its defaults for the rest.
struct config {
  static constexpr int undefined = INT32_MIN;

  std::size_t size = sizeof(config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
  /// Since 2.17; here only to fill the size that alignment gives.
  int cga_cluster_size = undefined;
};

/// The library's functions. Functions that older versions lack may be null.
struct library {
  int version = 0;

  result (*get_unique_id)(unique_id*) = nullptr;
  result (*comm_init_rank_config)(comm*, int ranks, unique_id, int rank, config*) = nullptr;
  result (*comm_finalize)(comm) = nullptr;
  result (*comm_destroy)(comm) = nullptr;
  result (*comm_abort)(comm) = nullptr;
  result (*comm_get_async_error)(comm, result*) = nullptr;
  const char* (*get_error_string)(result) = nullptr;
  const char* (*get_last_error)(comm) = nullptr;
  result (*group_start)() = nullptr;
  result (*group_end)() = nullptr;
  result (*send)(const void*, std::size_t, data_type, int peer, comm, void* stream) = nullptr;
  result (*receive)(void*, std::size_t, data_type, int peer, comm, void* stream) = nullptr;
  result (*all_gather)(const void*, void*, std::size_t, data_type, comm, void* stream) = nullptr;
  result (*all_reduce)(const void*, void*, std::size_t, data_type, operation, comm, void* stream) = nullptr;

  /// Since 2.19.
  result (*mem_alloc)(void**, std::size_t) = nullptr;
  result (*mem_free)(void*) = nullptr;
  result (*comm_register)(comm, void*, std::size_t, void** handle) = nullptr;
  result (*comm_deregister)(comm, void* handle) = nullptr;
  /// Since 2.27.3 and 2.28.7. Shrinking is used only together with revoking: a revoked communicator writes no more.
  result (*comm_shrink)(comm, int* excluded, int count, comm*, config*, int flags) = nullptr;
  result (*comm_revoke)(comm, int flags) = nullptr;

  [[nodiscard]] bool can_shrink() const noexcept { return comm_shrink != nullptr && comm_revoke != nullptr; }
  [[nodiscard]] bool can_register() const noexcept {
    return mem_alloc != nullptr && mem_free != nullptr && comm_register != nullptr && comm_deregister != nullptr;
  }
};

/// "2.28.9" of 22809.
[[nodiscard]] std::string version_text(int version);

/// The library of this process, opened once and never closed. Fails as `find_nccl` does.
[[nodiscard]] expected<std::shared_ptr<const library>> open_library();

[[nodiscard]] data_type type_of(dtype type) noexcept;

/// The error of a call that returned `code`. NCCL reports connections that break because a peer died as remote errors
/// or as system errors, which become `loss`: in either case the driver knows the lost worker.
[[nodiscard]] tl::unexpected<error> refused(const library& api, const char* call, result code,
                                            errc loss = errc::aborted);

} // namespace troupe::collectives::nccl

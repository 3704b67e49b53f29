#include "nccl/library.hpp"

#include <cstddef>
#include <nccl.h>
#include <type_traits>

// Compiled only for this comparison, where nccl.h is installed.
namespace troupe::collectives::nccl {

static_assert(sizeof(unique_id) == sizeof(ncclUniqueId));
static_assert(offsetof(config, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(sizeof(config) == offsetof(config, blocking) + 2 * sizeof(int));
// Since 2.17.
#ifdef NCCL_CONFIG_UNDEF_INT
static_assert(config::undefined == NCCL_CONFIG_UNDEF_INT);
#endif

static_assert(int{success} == int{ncclSuccess} && int{unhandled_cuda_error} == int{ncclUnhandledCudaError} &&
              int{system_error} == int{ncclSystemError} && int{internal_error} == int{ncclInternalError} &&
              int{invalid_argument} == int{ncclInvalidArgument} && int{invalid_usage} == int{ncclInvalidUsage} &&
              int{remote_error} == int{ncclRemoteError} && int{in_progress} == int{ncclInProgress});
static_assert(int{int8} == int{ncclInt8} && int{uint8} == int{ncclUint8} && int{int32} == int{ncclInt32} &&
              int{int64} == int{ncclInt64} && int{float16} == int{ncclFloat16} && int{float32} == int{ncclFloat32} &&
              int{float64} == int{ncclFloat64} && int{bfloat16} == int{ncclBfloat16});
static_assert(int{sum} == int{ncclSum});

/// Compares a function of the table with NCCL's own: the same number of arguments, of the same sizes.
template <class Ours, class Theirs>
struct fits : std::false_type {};
template <class R, class... A, class S, class... B>
struct fits<R (*)(A...), S (*)(B...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(A) == sizeof...(B))
      return sizeof(R) == sizeof(S) && ((sizeof(A) == sizeof(B)) && ...);
    else
      return false;
  }();
};

#define TROUPE_FITS(ours, theirs) static_assert(fits<decltype(library::ours), decltype(&theirs)>::value)
TROUPE_FITS(get_unique_id, ncclGetUniqueId);
TROUPE_FITS(comm_init_rank_config, ncclCommInitRankConfig);
TROUPE_FITS(comm_finalize, ncclCommFinalize);
TROUPE_FITS(comm_destroy, ncclCommDestroy);
TROUPE_FITS(comm_abort, ncclCommAbort);
TROUPE_FITS(comm_get_async_error, ncclCommGetAsyncError);
TROUPE_FITS(get_error_string, ncclGetErrorString);
TROUPE_FITS(get_last_error, ncclGetLastError);
TROUPE_FITS(group_start, ncclGroupStart);
TROUPE_FITS(group_end, ncclGroupEnd);
TROUPE_FITS(send, ncclSend);
TROUPE_FITS(receive, ncclRecv);
TROUPE_FITS(all_gather, ncclAllGather);
TROUPE_FITS(all_reduce, ncclAllReduce);
#if NCCL_VERSION_CODE >= 21900
TROUPE_FITS(mem_alloc, ncclMemAlloc);
TROUPE_FITS(mem_free, ncclMemFree);
TROUPE_FITS(comm_register, ncclCommRegister);
TROUPE_FITS(comm_deregister, ncclCommDeregister);
#endif
#if NCCL_VERSION_CODE >= 22703
TROUPE_FITS(comm_shrink, ncclCommShrink);
#endif
#if NCCL_VERSION_CODE >= 22807
TROUPE_FITS(comm_revoke, ncclCommRevoke);
#endif
#undef TROUPE_FITS

} // namespace troupe::collectives::nccl

#include "nccl/library.hpp"

#include <troupe/collectives/nccl_group.hpp>

#include <dlfcn.h>
#include <fmt/format.h>

namespace troupe::collectives::nccl {

namespace {

template <class F>
bool load(void* handle, const char* name, F*& target) {
  target = reinterpret_cast<F*>(::dlsym(handle, name));
  return target != nullptr;
}

/// Versions before 2.9 have one digit less.
constexpr int oldest = 21400;

tl::unexpected<error> missing(const std::string& why) {
  return fail(
      errc::unsatisfiable,
      fmt::format(
          "{}; install NCCL 2.14 or later, name its directory in LD_LIBRARY_PATH, or let the workers share a GPU",
          why));
}

expected<std::shared_ptr<const library>> open_new() {
  ::dlerror();
  auto* handle = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const auto* why = ::dlerror();
    return missing(fmt::format("NCCL cannot be opened: {}", why != nullptr ? why : "libnccl.so.2"));
  }
  auto result = std::make_shared<library>();
  nccl::result (*get_version)(int*) = nullptr;
  if (!load(handle, "ncclGetVersion", get_version) || get_version(&result->version) != success)
    return missing("libnccl.so.2 does not report its version");
  if (result->version < oldest)
    return missing(fmt::format("NCCL {} has no communicators that can be aborted", version_text(result->version)));
  const char* absent = nullptr;
  const auto need = [&](const char* name, auto& target) {
    if (!load(handle, name, target))
      absent = name;
  };
  need("ncclGetUniqueId", result->get_unique_id);
  need("ncclCommInitRankConfig", result->comm_init_rank_config);
  need("ncclCommFinalize", result->comm_finalize);
  need("ncclCommDestroy", result->comm_destroy);
  need("ncclCommAbort", result->comm_abort);
  need("ncclCommGetAsyncError", result->comm_get_async_error);
  need("ncclGetErrorString", result->get_error_string);
  need("ncclGetLastError", result->get_last_error);
  need("ncclGroupStart", result->group_start);
  need("ncclGroupEnd", result->group_end);
  need("ncclSend", result->send);
  need("ncclRecv", result->receive);
  need("ncclAllGather", result->all_gather);
  need("ncclAllReduce", result->all_reduce);
  if (absent != nullptr)
    return missing(fmt::format("NCCL {} lacks {}", version_text(result->version), absent));
  load(handle, "ncclMemAlloc", result->mem_alloc);
  load(handle, "ncclMemFree", result->mem_free);
  load(handle, "ncclCommRegister", result->comm_register);
  load(handle, "ncclCommDeregister", result->comm_deregister);
  load(handle, "ncclCommShrink", result->comm_shrink);
  load(handle, "ncclCommRevoke", result->comm_revoke);
  return result;
}

} // namespace

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

expected<std::shared_ptr<const library>> open_library() {
  static const auto opened = open_new();
  return opened;
}

data_type type_of(dtype type) noexcept {
  switch (type) {
  case dtype::f32:
    return float32;
  case dtype::f64:
    return float64;
  case dtype::f16:
    return float16;
  case dtype::bf16:
    return bfloat16;
  case dtype::i32:
    return int32;
  case dtype::i64:
    return int64;
  case dtype::i8:
    return int8;
  case dtype::u8:
  case dtype::i16:
  case dtype::u16:
  case dtype::u32:
  case dtype::u64:
  case dtype::boolean:
    break;
  }
  return uint8;
}

tl::unexpected<error> refused(const library& api, const char* call, result code, errc loss) {
  auto text = fmt::format("{}: {}", call, api.get_error_string(code));
  if (const auto* last = api.get_last_error(nullptr); last != nullptr && *last != '\0')
    text += fmt::format(" ({})", last);
  const auto is_loss = code == remote_error || code == system_error;
  return fail(is_loss ? loss : errc::device_error, std::move(text));
}

} // namespace troupe::collectives::nccl

namespace troupe::collectives {

expected<std::string> find_nccl() {
  return nccl::open_library().map([](const auto& x) { return fmt::format("NCCL {}", nccl::version_text(x->version)); });
}

} // namespace troupe::collectives

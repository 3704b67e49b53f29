#include "memory.hpp"
#include "ptx_machine.hpp"
#include "stream.hpp"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

// The functions called by objects that nvcc has compiled: they register their kernels, as PTX, and launch them. See
// README.md.

namespace fake_cuda {

namespace {

[[noreturn]] void end_process(const std::string& why) {
  std::fprintf(stderr, "fake CUDA: %s\n", why.c_str());
  std::abort();
}

/// The output of nvcc for one source: consecutive entries, each for one architecture, as code or as PTX.
struct fat_binary {
  static constexpr std::uint32_t known_magic = 0xba55ed50;

  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint64_t size_bytes;
};

struct fat_entry {
  static constexpr std::uint16_t is_ptx = 1;

  std::uint16_t kind;
  std::uint16_t version;
  std::uint32_t header_bytes;
  std::uint64_t size_bytes;
};

template <class T>
T read(const std::byte* data) {
  T result;
  std::memcpy(&result, data, sizeof(result));
  return result;
}

std::string_view ptx_of(const std::byte* data) {
  const auto all = read<fat_binary>(data);
  if (all.magic != fat_binary::known_magic)
    end_process("kernels are registered in an unsupported format");
  const auto* end = data + all.header_bytes + all.size_bytes;
  for (data += all.header_bytes; data < end;) {
    const auto entry = read<fat_entry>(data);
    const auto text = std::string_view{reinterpret_cast<const char*>(data) + entry.header_bytes, entry.size_bytes};
    if (entry.kind == fat_entry::is_ptx) {
      if (!text.starts_with('\n') && !text.starts_with(".version"))
        end_process("the PTX is compressed: compile it with nvcc --no-compress");
      // Padded with zeros.
      return text.substr(0, text.find('\0'));
    }
    data += entry.header_bytes + entry.size_bytes;
  }
  end_process("kernels are registered without PTX");
}

/// The kernels of one source.
struct source {
  const std::byte* data = nullptr;
  std::map<std::string, ptx::kernel, std::less<>> kernels;
};

/// Objects register their kernels before `main`; the text is parsed at the first launch.
class kernel_table {
 public:
  source* add_source(const std::byte* data) {
    const std::lock_guard lock{mutex_};
    return sources_.emplace_back(std::make_unique<source>(source{data, {}})).get();
  }
  void add(const void* function, source* from, const char* name) {
    const std::lock_guard lock{mutex_};
    known_[function] = {from, name};
  }

  const ptx::kernel* find(const void* function) {
    const std::lock_guard lock{mutex_};
    const auto found = known_.find(function);
    if (found == known_.end())
      return nullptr;
    auto& [from, name] = found->second;
    if (from->kernels.empty())
      from->kernels = ptx::parse(ptx_of(from->data));
    const auto kernel = from->kernels.find(name);
    return kernel == from->kernels.end() ? nullptr : &kernel->second;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<source>> sources_;
  std::map<const void*, std::pair<source*, std::string>> known_;
};

kernel_table& kernels() {
  static auto& made = *new kernel_table;
  return made;
}

/// Arguments are copied before the launch returns.
std::vector<std::byte> copy_arguments(const ptx::kernel& what, void** arguments) {
  std::vector<std::byte> result(what.parameter_bytes);
  for (std::size_t i = 0; i < what.parameters.size(); ++i)
    std::memcpy(result.data() + what.parameters[i].offset_bytes, arguments[i], what.parameters[i].size_bytes);
  return result;
}

void run_or_lose_device(const ptx::kernel& what, dim3 blocks, dim3 threads, const std::vector<std::byte>& arguments) {
  try {
    ptx::run(what, blocks.x, threads.x, arguments, [](std::uintptr_t at) { return known_memory().around(at); });
  } catch (const ptx::violation& x) {
    std::fprintf(stderr, "fake CUDA: %s\n", x.what());
    loss::set(cudaErrorIllegalAddress);
  }
}

} // namespace

} // namespace fake_cuda

using namespace fake_cuda;

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the names are nvcc's.
extern "C" {

/// The registered structure: fatbinary_section.h of CUDA.
struct fat_binary_wrapper {
  int magic;
  int version;
  const std::byte* data;
  void* more;
};

void** __cudaRegisterFatBinary(void* wrapper) {
  return reinterpret_cast<void**>(kernels().add_source(static_cast<const fat_binary_wrapper*>(wrapper)->data));
}

void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void** from, const char* function, char*, const char* name, int, void*, void*, void*, void*,
                            int*) {
  kernels().add(function, reinterpret_cast<source*>(from), name);
}

// For kernel<<<...>>>(...), which Troupe writes as a call of cudaLaunchKernel.
cudaError_t __cudaPopCallConfiguration(void*, void*, void*, void*) {
  end_process("launch kernels with cudaLaunchKernel");
}
cudaError_t __cudaGetKernel(void*, const void*) {
  return cudaErrorNotSupported;
}
cudaError_t __cudaLaunchKernel(void*, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return cudaErrorNotSupported;
}

cudaError_t cudaLaunchKernel(const void* function, dim3 blocks, dim3 threads, void** arguments, std::size_t,
                             cudaStream_t stream) {
  try {
    const auto* what = kernels().find(function);
    if (what == nullptr)
      return cudaErrorInvalidDeviceFunction;
    return launch(blocks, threads, stream, [what, blocks, threads, values = copy_arguments(*what, arguments)] {
      run_or_lose_device(*what, blocks, threads, values);
    });
  } catch (const ptx::violation& x) {
    end_process(x.what());
  }
}

} // extern "C"
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

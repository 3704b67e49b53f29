#include <troupe/runtime/fingerprint.hpp>

#include <troupe/runtime/program.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace troupe::runtime {

namespace {

using value_map = std::map<std::string, std::string>;

std::string yes_or_no(bool x) {
  return x ? "yes" : "no";
}

// -- the processor

#if defined(__x86_64__)

void add_processor(value_map& values) {
  auto add = [&values](const char* name, int supported) {
    values[std::string{"cpu."} + name] = yes_or_no(supported != 0);
  };
  // The builtin takes literals only. It also asks whether the kernel saves the registers.
  add("sse4.1", __builtin_cpu_supports("sse4.1"));
  add("sse4.2", __builtin_cpu_supports("sse4.2"));
  add("avx", __builtin_cpu_supports("avx"));
  add("avx2", __builtin_cpu_supports("avx2"));
  add("fma", __builtin_cpu_supports("fma"));
  add("fma4", __builtin_cpu_supports("fma4"));
  add("f16c", __builtin_cpu_supports("f16c"));
  add("avx512f", __builtin_cpu_supports("avx512f"));
  add("avx512vl", __builtin_cpu_supports("avx512vl"));
  add("avx512bw", __builtin_cpu_supports("avx512bw"));
  add("avx512dq", __builtin_cpu_supports("avx512dq"));
  add("avx512vnni", __builtin_cpu_supports("avx512vnni"));
  add("avx512bf16", __builtin_cpu_supports("avx512bf16"));
}

struct float_mode {
  unsigned bits = _mm_getcsr();

  [[nodiscard]] bool flushes_results() const { return (bits & _MM_FLUSH_ZERO_MASK) != 0; }
  [[nodiscard]] bool flushes_operands() const { return (bits & 0x40U) != 0; }
};

void keep_subnormal_numbers() {
  constexpr unsigned flush_operands = 0x40;
  _mm_setcsr(_mm_getcsr() & ~(static_cast<unsigned>(_MM_FLUSH_ZERO_MASK) | flush_operands));
}

#elif defined(__aarch64__)

void add_processor(value_map& values) {
  auto add = [&values](const char* name, bool supported) { values[std::string{"cpu."} + name] = yes_or_no(supported); };
  auto first = getauxval(AT_HWCAP);
  auto second = getauxval(AT_HWCAP2);
  add("fp", (first & HWCAP_FP) != 0);
  add("asimd", (first & HWCAP_ASIMD) != 0);
  add("fphp", (first & HWCAP_FPHP) != 0);
  add("asimdhp", (first & HWCAP_ASIMDHP) != 0);
  add("asimddp", (first & HWCAP_ASIMDDP) != 0);
  add("asimdfhm", (first & HWCAP_ASIMDFHM) != 0);
  add("sve", (first & HWCAP_SVE) != 0);
  add("sve2", (second & HWCAP2_SVE2) != 0);
  add("bf16", (second & HWCAP2_BF16) != 0);
  add("i8mm", (second & HWCAP2_I8MM) != 0);
}

constexpr std::uint64_t flush_to_zero = std::uint64_t{1} << 24;
constexpr std::uint64_t flush_half_to_zero = std::uint64_t{1} << 19;

std::uint64_t control_register() {
  std::uint64_t bits = 0;
  asm volatile("mrs %0, fpcr" : "=r"(bits));
  return bits;
}

/// One bit flushes operands and results alike.
struct float_mode {
  std::uint64_t bits = control_register();

  [[nodiscard]] bool flushes_results() const { return (bits & (flush_to_zero | flush_half_to_zero)) != 0; }
  [[nodiscard]] bool flushes_operands() const { return flushes_results(); }
};

void keep_subnormal_numbers() {
  auto bits = control_register() & ~(flush_to_zero | flush_half_to_zero);
  asm volatile("msr fpcr, %0" : : "r"(bits));
}

#else

void add_processor(value_map&) {}

/// Other processors show their mode in the probes alone.
struct float_mode {
  [[nodiscard]] static bool flushes_results() { return false; }
  [[nodiscard]] static bool flushes_operands() { return false; }
};

void keep_subnormal_numbers() {}

#endif

std::string rounding_name() {
  switch (std::fegetround()) {
  case FE_TONEAREST:
    return "nearest";
  case FE_DOWNWARD:
    return "down";
  case FE_UPWARD:
    return "up";
  case FE_TOWARDZERO:
    return "zero";
  default:
    return "unknown";
  }
}

void add_float_mode(value_map& values) {
  float_mode mode;
  values["float.flush_results_to_zero"] = yes_or_no(mode.flushes_results());
  values["float.flush_operands_to_zero"] = yes_or_no(mode.flushes_operands());
  values["float.rounding"] = rounding_name();
}

std::string architecture() {
  utsname names{};
  return uname(&names) == 0 ? names.machine : "unknown";
}

// -- libraries

/// How the file names of libraries begin that compute, or schedule what computes.
constexpr std::array<std::string_view, 31> computing_libraries{
    "libc.so",   "libc-",     "libm.so",     "libm-",    "libmvec",     "libstdc++",   "libgcc_s",   "libblas",
    "libcblas",  "liblapack", "libopenblas", "libatlas", "libmkl",      "libblis",     "libflame",   "libdnnl",
    "libgomp",   "libiomp",   "libomp",      "libtbb",   "libgfortran", "libquadmath", "libsleef",   "libcuda",
    "libcublas", "libcudnn",  "libcufft",    "libnccl",  "libtorch",    "libc10",      "libxgboost",
};

std::string_view file_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

bool computes(std::string_view path) {
  return std::ranges::any_of(computing_libraries,
                             [name = file_name(path)](auto prefix) { return name.starts_with(prefix); });
}

/// Some vendors link without build ids, and their libraries are too large to be hashed at each start.
std::string size_of_file(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0)
    return "no build id";
  return fmt::format("no build id, {} bytes", status.st_size);
}

/// OpenBLAS chooses a kernel by the processor it finds; libblas.so.3 may be OpenBLAS under another name.
std::string blas_kernel(const std::string& library) {
  auto* handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr)
    return {};
  std::string result;
  if (auto* symbol = dlsym(handle, "openblas_get_corename"); symbol != nullptr) {
    auto* core_name = reinterpret_cast<const char* (*)()>(symbol);
    result = core_name();
  }
  dlclose(handle);
  return result;
}

void add_libraries(value_map& values) {
  values["libc.version"] = gnu_get_libc_version();
  // The program is compared by its own identity.
  for (const auto& object : loaded_objects()) {
    if (!computes(object.name))
      continue;
    auto name = std::string{file_name(object.name)};
    values["object." + name] = object.build_id.empty() ? size_of_file(object.name) : object.build_id;
    if (name.find("blas") == std::string::npos)
      continue;
    if (auto kernel = blas_kernel(object.name); !kernel.empty())
      values["blas.kernel"] = kernel;
  }
}

void add_threads(value_map& values) {
  for (const auto* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}) {
    const auto* value = std::getenv(name);
    values[std::string{"threads."} + name] = value == nullptr ? "unset" : value;
  }
}

// -- probes

/// FNV-1a over the bit patterns of results: detects differences, but not manipulation.
class bit_hash {
 public:
  template <class T>
  void add(T x) {
    for (auto byte : std::bit_cast<std::array<std::uint8_t, sizeof(T)>>(x))
      state_ = (state_ ^ byte) * 0x100000001b3U;
  }

  [[nodiscard]] std::string text() const {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string result;
    for (int shift = 60; shift >= 0; shift -= 4)
      result += digits[state_ >> shift & 15];
    return result;
  }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325U;
};

constexpr int probes = 256;

/// Numbers in [0, 1) by splitmix64. The seed is volatile, so that no compiler computes the probes in advance.
class probe_inputs {
 public:
  double next() {
    state_ += 0x9e3779b97f4a7c15U;
    auto x = state_;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
    x = (x ^ x >> 27) * 0x94d049bb133111ebU;
    return static_cast<double>((x ^ x >> 31) >> 11) * 0x1p-53;
  }

 private:
  static inline volatile std::uint64_t seed_ = 42;
  std::uint64_t state_ = seed_;
};

/// The functions of libm that training uses, each over its interesting range.
template <class T>
std::string probe_library_functions() {
  bit_hash hash;
  probe_inputs inputs;
  for (int i = 0; i < probes; ++i) {
    auto x = static_cast<T>(inputs.next());
    auto wide = static_cast<T>((inputs.next() - 0.5) * 40);
    hash.add(std::exp(wide));
    hash.add(std::expm1(x));
    hash.add(std::tanh(wide / 8));
    hash.add(std::log(x + T{1e-3F}));
    hash.add(std::log1p(x));
    hash.add(std::sin(wide));
    hash.add(std::cos(wide));
    hash.add(std::pow(x + T{0.5F}, wide));
    hash.add(std::erf(wide / 8));
  }
  return hash.text();
}

/// Divisions, roots and a dot product in a fixed order, whose products and sums must not be fused.
template <class T>
void probe_arithmetic(bit_hash& hash) {
  probe_inputs inputs;
  T dot = 0;
  for (int i = 0; i < probes; ++i) {
    auto x = static_cast<T>(inputs.next() - 0.5);
    auto y = static_cast<T>(inputs.next() + 0.5);
    dot += x * y;
    hash.add(dot);
    hash.add(x / y);
    hash.add(std::sqrt(y));
  }
}

std::string probe_arithmetic() {
  bit_hash hash;
  probe_arithmetic<float>(hash);
  probe_arithmetic<double>(hash);
  return hash.text();
}

#if defined(__x86_64__)

/// The approximate reciprocals, which vendors may and do implement differently; Eigen and others refine them.
std::string probe_reciprocals() {
  bit_hash hash;
  probe_inputs inputs;
  for (int i = 0; i < probes; ++i) {
    auto x = _mm_set_ss(static_cast<float>(inputs.next() * 100 + 0.01));
    hash.add(_mm_cvtss_f32(_mm_rcp_ss(x)));
    hash.add(_mm_cvtss_f32(_mm_rsqrt_ss(x)));
  }
  return hash.text();
}

#endif

void add_probes(value_map& values) {
  values["probe.libm_f64"] = probe_library_functions<double>();
  values["probe.libm_f32"] = probe_library_functions<float>();
  values["probe.arithmetic"] = probe_arithmetic();
#if defined(__x86_64__)
  values["probe.reciprocals"] = probe_reciprocals();
#endif
}

const std::string& value_or_absent(const value_map& values, const std::string& name) {
  static const std::string absent = "absent";
  auto found = values.find(name);
  return found == values.end() ? absent : found->second;
}

} // namespace

numerics_fingerprint take_fingerprint(std::string_view device) {
  numerics_fingerprint result;
  result.values["architecture"] = architecture();
  result.values["device"] = device;
  add_processor(result.values);
  add_float_mode(result.values);
  add_libraries(result.values);
  add_threads(result.values);
  add_probes(result.values);
  return result;
}

std::string to_json(const numerics_fingerprint& fingerprint) {
  // Values of environment variables may be no UTF-8.
  return nlohmann::json(fingerprint.values).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

expected<numerics_fingerprint> parse_fingerprint(std::string_view json) {
  auto document = nlohmann::json::parse(json, nullptr, false);
  if (!document.is_object())
    return fail(errc::invalid_argument, "this is no numerics fingerprint: it is not a JSON object");
  numerics_fingerprint result;
  for (const auto& [name, value] : document.items()) {
    if (!value.is_string())
      return fail(errc::invalid_argument, "this is no numerics fingerprint: the value of '" + name + "' is not text");
    result.values[name] = value.get<std::string>();
  }
  return result;
}

std::vector<std::string> differences(const numerics_fingerprint& here, const numerics_fingerprint& there) {
  auto all = here.values;
  all.insert(there.values.begin(), there.values.end());
  std::vector<std::string> result;
  for (const auto& [name, unused] : all) {
    const auto& ours = value_or_absent(here.values, name);
    const auto& theirs = value_or_absent(there.values, name);
    if (ours != theirs)
      result.push_back(name + ": " + ours + " here, " + theirs + " there");
  }
  return result;
}

void prepare_arithmetic_thread() {
  std::fesetround(FE_TONEAREST);
  keep_subnormal_numbers();
}

} // namespace troupe::runtime

#include "library.hpp"

#include <troupe/inference/optional_library.hpp>
#include <troupe/onnxruntime.hpp>

#include <dlfcn.h>
#include <fmt/format.h>
#include <string>

namespace troupe::onnxruntime {

namespace fs = std::filesystem;

namespace {

const inference::optional_library onnxruntime_library{"ONNX Runtime", "libonnxruntime.so", "onnxruntime",
                                                      "onnxruntime/capi", "TROUPE_ONNXRUNTIME"};

/// That of ONNX Runtime 1.14.
constexpr std::uint32_t wanted_version = 14;

using any_function = void (*)();

struct api_base {
  const any_function* (*get_api)(std::uint32_t version);
  const char* (*get_version)();
};

} // namespace

expected<fs::path> find_library(const fs::path& asked) {
  return inference::find_library(onnxruntime_library, asked);
}

expected<library> library::open(const fs::path& path) {
  TROUPE_TRY(auto* handle, inference::open_library(onnxruntime_library, path));
  auto* get_base = reinterpret_cast<const api_base* (*)()>(::dlsym(handle, "OrtGetApiBase"));
  if (get_base == nullptr)
    return fail(errc::unsatisfiable, fmt::format("{} is not ONNX Runtime: it has no OrtGetApiBase", path.string()));
  const auto* table = get_base()->get_api(wanted_version);
  if (table == nullptr)
    return fail(errc::unsatisfiable, fmt::format("{} is ONNX Runtime {}: 1.{} or later is required", path.string(),
                                                 get_base()->get_version(), wanted_version));
  library result;
  result.version_ = get_base()->get_version();
  auto& all = result.functions_;
  auto load = [table]<class Function>(Function& target, std::size_t place) {
    target = reinterpret_cast<Function>(table[place]);
  };
  load(all.get_error_message, 2);
  load(all.create_environment, 3);
  load(all.create_session_from_array, 8);
  load(all.run, 9);
  load(all.create_session_options, 10);
  load(all.set_log_severity, 22);
  load(all.set_threads_of_operator, 24);
  load(all.set_threads_of_graph, 25);
  load(all.get_input_count, 30);
  load(all.get_output_count, 31);
  load(all.get_input_type, 33);
  load(all.get_output_type, 34);
  load(all.get_input_name, 36);
  load(all.get_output_name, 37);
  load(all.create_tensor, 49);
  load(all.get_tensor_data, 51);
  load(all.get_tensor_info_of_type, 55);
  load(all.get_kind_of_type, 56);
  load(all.get_element_type, 60);
  load(all.get_dimension_count, 61);
  load(all.get_dimensions, 62);
  load(all.get_tensor_info, 65);
  load(all.create_cpu_memory_info, 69);
  load(all.free_of_allocator, 76);
  load(all.get_default_allocator, 78);
  load(all.release_environment, 92);
  load(all.release_status, 93);
  load(all.release_memory_info, 94);
  load(all.release_session, 95);
  load(all.release_value, 96);
  load(all.release_type_info, 98);
  load(all.release_tensor_info, 99);
  load(all.release_session_options, 100);
  return result;
}

void library::check(ort_status* status) const {
  if (status == nullptr)
    return;
  auto text = std::string{functions_.get_error_message(status)};
  functions_.release_status(status);
  throw exception{errc::user_error, fmt::format("ONNX Runtime: {}", text)};
}

} // namespace troupe::onnxruntime

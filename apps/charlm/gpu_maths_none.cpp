#include <charlm/gpu_maths.hpp>

namespace charlm {

troupe::expected<std::unique_ptr<device_maths>> open_gpu_maths(std::shared_ptr<troupe::collectives::device>,
                                                               troupe::collectives::stream_handle) {
  return troupe::fail(troupe::errc::unsatisfiable,
                      "charlm was built without CUDA or cuBLAS: install the CUDA Toolkit with "
                      "both and build again, or omit --use-gpu");
}

std::map<std::string, std::string> gpu_maths_numerics() {
  return {};
}

} // namespace charlm

#include <troupe/collectives/device.hpp>
#include <troupe/collectives/device_software.hpp>

// Compiled where CMake finds no CUDA Toolkit.
namespace troupe::collectives {

namespace {

tl::unexpected<error> without_cuda() {
  return fail(errc::unsatisfiable, "this program was built without CUDA and uses no GPU: build it where CMake finds "
                                   "the CUDA Toolkit, or run without use_gpu");
}

} // namespace

std::string device_support() {
  return "built without CUDA";
}

device_software find_device_software() {
  return {};
}

expected<std::vector<device_info>> find_devices() {
  return without_cuda();
}

expected<std::shared_ptr<device>> open_device(int) {
  return without_cuda();
}

} // namespace troupe::collectives

#include "driver/run_naming.hpp"

#include <troupe/actors/run_name.hpp>

#include <chrono>
#include <filesystem>
#include <system_error>

namespace troupe::runtime {

void name_run(trainer_config& config) {
  if (!config.run.name.empty() || !validate(config))
    return;
  auto ignored = std::error_code{};
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored).filename().string();
  config.run.name = actors::reserve_run(config.run.storage_path, program, std::chrono::system_clock::now());
}

} // namespace troupe::runtime

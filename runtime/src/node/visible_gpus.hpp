#pragma once

#include <troupe/error.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

/// This host's GPUs, named as in CUDA_VISIBLE_DEVICES. There is one for each device file (`nvidia0`, ...) in
/// `device_directory`; `variable`, the value of CUDA_VISIBLE_DEVICES, selects among them. As in CUDA, an entry that
/// matches no device ends the list, and a duplicate entry makes it empty. Uses no CUDA library.
[[nodiscard]] std::vector<std::string> visible_gpus(const std::filesystem::path& device_directory,
                                                    const std::optional<std::string>& variable);

/// The GPUs visible to this process, or the first `wanted` of them. Without CUDA_VISIBLE_DEVICES, `wanted` may exceed
/// the device files found, because some systems have none (such as WSL). Fails with `errc::invalid_argument` if
/// CUDA_VISIBLE_DEVICES selects fewer.
[[nodiscard]] expected<std::vector<std::string>> gpus_to_offer(std::optional<std::uint32_t> wanted);

} // namespace troupe::runtime

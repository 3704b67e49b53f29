#pragma once

#include <troupe/error.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

/// This host's GPUs, by the names that CUDA_VISIBLE_DEVICES has for them: as many as there are device files
/// (`nvidia0`, ...) in `device_directory`, or those of them that `variable`, the value of CUDA_VISIBLE_DEVICES, leaves.
/// As with CUDA, an entry that means no device ends the list, and one that comes twice leaves nothing. Asks no CUDA
/// library.
[[nodiscard]] std::vector<std::string> visible_gpus(const std::filesystem::path& device_directory,
                                                    const std::optional<std::string>& variable);

/// The same for this process, or the first `wanted` of them. Where there are no device files (as under WSL), as many as
/// are wanted are believed. Fails with `errc::invalid_argument` where CUDA_VISIBLE_DEVICES leaves fewer.
[[nodiscard]] expected<std::vector<std::string>> gpus_to_offer(std::optional<std::uint32_t> wanted);

} // namespace troupe::runtime

#pragma once

#include "checkpoint/commands.hpp"

#include <troupe/runtime/mirror.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

/// The subcommands of `troupe checkpoint` that read from a mirror: see commands.hpp.
namespace troupe::tool {

/// Lists the checkpoints of a run at a mirror, `rclone:REMOTE:PATH/RUN`, and whether they are complete.
[[nodiscard]] int list_mirror(const list_arguments& given, const std::string& rclone);

struct fetch_arguments {
  std::string from;
  std::filesystem::path to;
  std::optional<std::uint64_t> step;
  std::string rclone = "rclone";
  output_format output = output_format::text;
};

/// Copies a checkpoint from a mirror into a directory, and verifies the copy.
[[nodiscard]] int fetch(const fetch_arguments& given);

} // namespace troupe::tool

#pragma once

#include "run/ledger.hpp"

#include <troupe/error.hpp>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace troupe::tool {

/// `RUN/run.json`. Fails with `errc::not_found` where `run` is no directory of a run.
[[nodiscard]] expected<nlohmann::json> read_run_json(const std::filesystem::path& run);

/// Says how many compared steps lack a part, or nothing: "; of 3 steps ...".
[[nodiscard]] std::string lost_parts(const ledger_comparison& what);

/// Prints an error; returns the exit code.
[[nodiscard]] int report_trouble(const char* command, const expected<int>& outcome);

} // namespace troupe::tool

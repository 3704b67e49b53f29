#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/jobs.hpp>

#include <nlohmann/json.hpp>

/// Jobs as JSON: between nodes and tools, and in a node's files. Unknown fields are ignored.
namespace troupe::runtime {

[[nodiscard]] nlohmann::json describe(const known_job& job);

/// Fails with `errc::invalid_argument` for what describes no job that `validate` accepts.
[[nodiscard]] expected<known_job> parse_job(const nlohmann::json& text);

} // namespace troupe::runtime

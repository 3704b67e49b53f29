#pragma once

namespace troupe::tool {

inline constexpr auto serve_command = "serve";

/// Becomes `troupe-serve`, which lies beside this program: models need libraries that this program does without.
/// `argv` begins with "serve". Returns the exit code if that fails.
[[nodiscard]] int execute_serve(char** argv);

} // namespace troupe::tool

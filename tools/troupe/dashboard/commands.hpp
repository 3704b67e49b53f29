#pragma once

#include "run/control_commands.hpp"

#include <filesystem>
#include <string>
#include <vector>

/// The commands that show runs: in a browser, as a file, and as curves. Each prints errors to standard error and
/// returns the program's exit code.
namespace troupe::tool {

struct dashboard_arguments {
  std::filesystem::path storage = "runs";
  std::string listen = "127.0.0.1:8265";
  std::filesystem::path token_file;
  std::filesystem::path certificate;
  std::filesystem::path key;
};

/// Serves the page until SIGINT or SIGTERM.
[[nodiscard]] int serve_dashboard(const dashboard_arguments& given);

struct report_arguments {
  run_choice which;
  /// Empty: RUN-report.html where the command was started; "-": standard output.
  std::filesystem::path output;
};

/// Writes the page about one run as one file.
[[nodiscard]] int report(const report_arguments& given);

struct plot_arguments {
  run_choice which;
  std::vector<std::string> metrics;
  /// A file for SVG; empty: draws in the terminal.
  std::filesystem::path svg;
  /// The same for PNG.
  std::filesystem::path png;
};

/// Draws curves and the timeline.
[[nodiscard]] int plot(const plot_arguments& given);

} // namespace troupe::tool

#pragma once

#include <troupe/runtime/dashboard.hpp>

#include <CLI/CLI.hpp>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace troupe::apps {

/// The option `--dashboard` of a program, and the page, which is served as long as this lives.
class dashboard_option {
 public:
  /// Adds `--dashboard`, and `--dashboard-token-file`, `--dashboard-certificate` and `--dashboard-key`.
  explicit dashboard_option(CLI::App& app);
  dashboard_option(const dashboard_option&) = delete;
  dashboard_option& operator=(const dashboard_option&) = delete;
  ~dashboard_option();

  /// After parsing: serves the runs in `storage` if that was asked for, and says where on standard error. Returns the
  /// exit code for a page that cannot be served, after it has said why.
  [[nodiscard]] std::optional<int> open(const std::filesystem::path& storage);

 private:
  /// What was given; nothing without `--dashboard`.
  [[nodiscard]] expected<std::optional<runtime::dashboard_options>> options() const;

  std::string listen_;
  std::filesystem::path token_file_;
  std::filesystem::path certificate_;
  std::filesystem::path key_;
  std::unique_ptr<runtime::dashboard> page_;
};

} // namespace troupe::apps

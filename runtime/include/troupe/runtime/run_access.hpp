#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/control_client.hpp>
#include <troupe/runtime/found_run.hpp>

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <variant>

namespace troupe::runtime {

/// A run's directory on this machine, for those who watch and steer the run. Used by one thread.
class run_access {
 public:
  explicit run_access(std::filesystem::path directory) : directory_(std::move(directory)) {}

  /// The name of the directory, also of a path that ends in a slash or leads through a link.
  [[nodiscard]] std::string name() const;

  [[nodiscard]] const std::filesystem::path& directory() const noexcept { return directory_; }

  /// As `runtime::find_driver`.
  [[nodiscard]] std::variant<control_client, absent_driver> find_driver() const;

  /// The status of a run whose driver does not answer, as `runtime::stored_status`.
  [[nodiscard]] nlohmann::ordered_json stored_status(absence why) const;

  [[nodiscard]] bool has_driver() const;

 private:
  std::filesystem::path directory_;
};

} // namespace troupe::runtime

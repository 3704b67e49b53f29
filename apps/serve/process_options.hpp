#pragma once

#include <CLI/CLI.hpp>

#include <troupe/serving/remote_replicas.hpp>

#include <optional>

namespace serve {

/// The options of replicas in processes of their own.
class process_options {
 public:
  explicit process_options(CLI::App& cli);
  process_options(const process_options&) = delete;
  process_options& operator=(const process_options&) = delete;

  /// What was given, without replicas, options and notice; nothing if replicas are threads of this process.
  [[nodiscard]] std::optional<troupe::serving::remote_config> given() const;

 private:
  bool are_processes_ = false;
  troupe::serving::remote_config config_;
};

} // namespace serve

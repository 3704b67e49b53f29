#pragma once

#include <troupe/config/run.hpp>
#include <troupe/error.hpp>

#include <chrono>
#include <filesystem>
#include <string>

namespace troupe {
struct trainer_config;
}

namespace troupe::runtime {

/// The environment variable that tells a driver how its job was submitted.
inline constexpr const char* job_variable = "TROUPE_JOB";

/// Its content.
struct job_context {
  std::string name;
  /// As `name_nodes` reads them; empty: the program's own.
  std::string nodes;
  bool insecure = false;
  std::filesystem::path keys;
  std::string mirror;
  std::chrono::milliseconds time_limit{0};
  std::chrono::milliseconds wait_for_resources{0};
  std::chrono::milliseconds lock_wait{0};
  /// For the job's first start.
  resume_mode resume = resume_mode::automatic;
  submitted_job job;

  bool operator==(const job_context&) const = default;
};

[[nodiscard]] std::string to_text(const job_context& job);
[[nodiscard]] expected<job_context> parse_job_context(const std::string& text);

/// Fills in what the program has left open: the run's name, its nodes, mirror and times; and says whose job it is.
[[nodiscard]] expected<void> complete(trainer_config& config, const job_context& job);

/// The same with the context in this process's environment, if there is one. Fails for one that cannot be read.
[[nodiscard]] expected<void> complete_for_job(trainer_config& config);

/// The same for a trainer of this process, whose run gets a name that no other of the job has. Throws `exception`.
void obey_job_variable(trainer_config& config);

} // namespace troupe::runtime

#pragma once

#include <troupe/actors/decisions/worker_table.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/worker.hpp>

#include <optional>
#include <string>
#include <vector>

namespace troupe::actors {

/// Decides whether a worker that joins would compute the same bits as the others: it runs the same build, on a host
/// that computes alike.
class host_comparison {
 public:
  /// The differences of two numerics fingerprints (JSON text).
  using compare_function = std::vector<std::string> (*)(const std::string& ours, const std::string& theirs);

  struct settings {
    std::string build_id;
    bool allow_mixed_hosts = false;
    compare_function compare = nullptr;
    /// Whether libraries may have changed since the checkpoint.
    bool allow_changed_libraries = false;
  };

  struct refusal {
    error reason;
    /// For the log.
    std::string why;
  };

  explicit host_comparison(settings how) : how_(std::move(how)) {}

  /// The reason to refuse this worker; nothing if it is admitted. `of_run` is the fingerprint of the checkpoint that
  /// the run resumes from, or of the previous driver's workers; without one, the worker is compared with the first
  /// admitted one of `workers`.
  [[nodiscard]] std::optional<refusal> refuse(const worker_record& who, const worker_ready& message,
                                              const worker_table& workers, const std::string& of_run);

  /// False once workers of different hosts were admitted because the configuration allows it.
  [[nodiscard]] bool is_exact() const noexcept { return !allowed_difference_; }

 private:
  [[nodiscard]] std::vector<std::string> differences_from(const std::string& of_run, const std::string& numerics) const;
  [[nodiscard]] std::optional<error> find_difference(const worker_record& who, const worker_ready& message,
                                                     const worker_table& workers, const std::string& of_run) const;

  settings how_;
  std::optional<error> allowed_difference_;
};

} // namespace troupe::actors

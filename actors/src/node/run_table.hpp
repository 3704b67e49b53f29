#pragma once

#include "node/hosted_run.hpp"

#include <troupe/error.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/types.hpp>

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::actors {

/// Whether this sender may command the run: it knows the run's secret, and no driver with a greater claim has the run.
/// `command` is for the message. Fails with `errc::wrong_secret` or `errc::superseded`.
[[nodiscard]] expected<void> check_command(const open_run& run, std::string_view command, const std::string& secret,
                                           const run_claim& claim);

/// "this node has no run X".
[[nodiscard]] error unknown_run(const run_id& run);

/// The runs of one node.
class run_table {
 public:
  [[nodiscard]] auto begin() noexcept { return runs_.begin(); }
  [[nodiscard]] auto end() noexcept { return runs_.end(); }

  /// Null for a run that is not here, or is ending.
  [[nodiscard]] hosted_run* find(const run_id& run);
  /// Also finds a run that is ending.
  [[nodiscard]] hosted_run* find_any(const run_id& run);
  /// The run of this proof, if its driver is gone.
  [[nodiscard]] const hosted_run* find_orphan(const std::optional<run_proof>& proof) const;

  /// Of a run that is not here yet.
  hosted_run& add(const open_run& request, std::string program_path);
  [[nodiscard]] std::optional<hosted_run> take(const run_id& run);
  void clear() noexcept { runs_.clear(); }

 private:
  std::map<run_id, hosted_run> runs_;
};

} // namespace troupe::actors

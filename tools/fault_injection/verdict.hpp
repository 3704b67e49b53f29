#pragma once

#include "ledger.hpp"
#include "schedule.hpp"

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace troupe::chaos {

/// A fault that was injected into a run.
struct injected_fault {
  fault_kind kind = fault_kind::kill;
  /// Since the run's first step.
  std::chrono::milliseconds at{0};
  /// The last step known to have been applied then.
  std::uint64_t step = 0;
  /// No line had come to the ledger for a while then.
  bool lines_waited = false;
  /// Worker processes that cannot have survived it.
  std::vector<std::uint32_t> killed;
  /// Worker processes that may be given up because of it.
  std::vector<std::uint32_t> endangered;
  /// No worker was left that could continue.
  bool left_none = false;
};

/// The facts about a finished disturbed run.
struct evidence {
  /// result.json of both runs; null if there is none.
  nlohmann::json result;
  nlohmann::json undisturbed;
  /// run.json of the disturbed run; null if there is none.
  nlohmann::json run;
  /// The requested number of workers; 0 if unknown.
  std::uint32_t workers = 0;
  std::vector<injected_fault> faults;
  /// The number of planned faults; 0 for any number.
  std::size_t planned_faults = 0;
  std::vector<ledger_entry> ledger;
  /// The number of samples in the data set, if known.
  std::optional<std::uint64_t> samples;
};

enum class answer : std::uint8_t {
  yes = 1,
  no = 2,
  /// The run's files lack the data needed to answer.
  unknown = 3,
  /// The question does not apply to this run.
  not_applicable = 4,
};

/// One condition of the verdict.
struct finding {
  std::string question;
  answer is = answer::unknown;
  std::string detail;
};

/// All conditions, in reading order.
[[nodiscard]] std::vector<finding> judge(const evidence& facts);

/// The workers that faults have killed or endangered.
[[nodiscard]] victim_records victims_of(const std::vector<injected_fault>& faults);

/// The percentile of the values for a share in [0, 1], by the nearest-rank method; 0 without values.
[[nodiscard]] double percentile(std::vector<double> values, double share);

} // namespace troupe::chaos

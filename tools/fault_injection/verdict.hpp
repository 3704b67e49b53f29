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

/// A fault that was done to a run.
struct injected_fault {
  fault_kind kind = fault_kind::kill;
  /// Since the run's first step.
  std::chrono::milliseconds at{0};
  /// The last step known to have been applied then.
  std::uint64_t step = 0;
  /// Processes of workers that cannot have survived it.
  std::vector<std::uint32_t> killed;
  /// Processes of workers that may be given up because of it.
  std::vector<std::uint32_t> endangered;
  /// No worker was left that could go on.
  bool left_none = false;
};

/// What is known of a disturbed run when it is over.
struct evidence {
  /// result.json of both runs; null where there is none.
  nlohmann::json result;
  nlohmann::json undisturbed;
  /// run.json of the disturbed run; null where there is none.
  nlohmann::json run;
  /// How many workers it was to have; 0 where that is not known.
  std::uint32_t workers = 0;
  std::vector<injected_fault> faults;
  /// How many were to be injected; 0 for any number.
  std::size_t planned_faults = 0;
  std::vector<ledger_entry> ledger;
  /// Samples in the data set; nothing where that cannot be known.
  std::optional<std::uint64_t> samples;
};

enum class answer : std::uint8_t {
  yes = 1,
  no = 2,
  /// This build does not tell what it takes to answer.
  not_told = 3,
  /// It is no question for this trial.
  not_asked = 4,
};

/// One condition of the verdict.
struct finding {
  std::string question;
  answer is = answer::not_told;
  std::string detail;
};

/// All conditions, in the order in which they should be read.
[[nodiscard]] std::vector<finding> judge(const evidence& facts);

/// The workers that faults have killed or endangered, with the last time for each.
[[nodiscard]] victim_steps victims_of(const std::vector<injected_fault>& faults);

/// The value below which this share of the values lies; 0 of none.
[[nodiscard]] double percentile(std::vector<double> values, double share);

} // namespace troupe::chaos
